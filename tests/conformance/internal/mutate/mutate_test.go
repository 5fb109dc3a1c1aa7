package mutate

import (
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/compare"
	"koord/conformance/internal/suite"
	"koord/conformance/internal/transcript"
)

const method = runtime.RuntimeService_ContainerStatus_FullMethodName

func recorded(t *testing.T) *transcript.Transcript {
	t.Helper()
	data, err := proto.Marshal(&runtime.ContainerStatusResponse{
		Status: &runtime.ContainerStatus{
			Id: strings.Repeat("a", 64), Metadata: &runtime.ContainerMetadata{Name: "main"},
			Labels: map[string]string{"k": "v", "empty": ""}, ExitCode: 3,
			User: &runtime.ContainerUser{Linux: &runtime.LinuxContainerUser{SupplementalGroups: []int64{1, 2}}},
		},
		Info: map[string]string{"info": `{"a":[1,"text",true,null],"b":{"c":""}}`},
	})
	if err != nil {
		t.Fatal(err)
	}
	request, err := proto.Marshal(&runtime.ContainerStatusRequest{ContainerId: strings.Repeat("a", 64)})
	if err != nil {
		t.Fatal(err)
	}
	return &transcript.Transcript{Scenarios: []transcript.Scenario{{
		Name: "one", StartedNS: 1, Steps: []transcript.Step{{
			Name: "status", Method: method, Status: &transcript.Status{Name: "OK"}, EndedNS: 2,
			Request: transcript.NewRequest(method, request),
			Replies: []transcript.Message{transcript.NewReply(method, data)},
			Header:  transcript.Metadata{"content-type": {"application/grpc"}},
		}},
	}}}
}

func TestEveryAlterationOfAReplyIsNoticed(t *testing.T) {
	tally := Offline(recorded(t))
	var out strings.Builder
	if err := tally.Print(&out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if len(tally.Unnoticed) > 0 {
		t.Fatalf("no blind spot is in this reply: %v", tally.Unnoticed)
	}
	// By hand: the root extended (1); status, metadata, user, linux and three
	// map entries dropped and extended (14); id and name dropped, blanked and
	// changed in three places (10); the labels "k"="v" (3+3) and "empty"=""
	// (5+2); the exit code (3); two group ids and their list (3); the key
	// "info" (5) and its JSON, dropped, and eight keys and values changed and
	// blanked (17); what surrounds the reply (9).
	if tally.Tried != 75 {
		t.Fatalf("%d alterations", tally.Tried)
	}
}

func TestAnAlterationChangesTheBytesInOnePlace(t *testing.T) {
	scenario := recorded(t).Scenarios[0]
	original := scenario.Steps[0].Replies[0].Bytes
	for _, alteration := range Of("one", &scenario.Steps[0]) {
		altered, err := alteration.Apply(method, original)
		if err != nil {
			t.Fatalf("%s: %v", alteration, err)
		}
		if string(altered) == string(original) {
			t.Errorf("%s changes nothing", alteration)
		}
	}
}

// A runtime lists in any order, and what stands where another element was
// recorded may have shorter values.
func TestAnAlterationMeetsAShorterValueThanTheRecorded(t *testing.T) {
	status := func(name string, groups ...int64) []byte {
		data, err := proto.Marshal(&runtime.ContainerStatusResponse{Status: &runtime.ContainerStatus{
			Id:   name,
			User: &runtime.ContainerUser{Linux: &runtime.LinuxContainerUser{SupplementalGroups: groups}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	long, short := status("longer", 1, 2, 3), status("a", 7)
	step := transcript.Step{Name: "status", Method: method, Replies: []transcript.Message{transcript.NewReply(method, long)}}
	met := 0
	for _, alteration := range Of("one", &step) {
		if alteration.How != Change {
			continue
		}
		altered, err := alteration.Apply(method, short)
		if err != nil {
			t.Fatalf("%s: %v", alteration, err)
		}
		if string(altered) == string(short) {
			t.Errorf("%s changes nothing", alteration)
		}
		met++
	}
	// Three characters of the id and each of the three groups.
	if met != 6 {
		t.Fatalf("%d changes", met)
	}
}

func TestValuesOfJSONAreFoundWhereTheyStand(t *testing.T) {
	text := []byte(`{"a": [1, "x\"y", true], "b":null}`)
	wanted := []string{`"a"`, "1", `"x\"y"`, "true", `"b"`, "null"}
	values := jsonValues(text)
	if len(values) != len(wanted) {
		t.Fatalf("%d values", len(values))
	}
	for i, at := range values {
		if got := string(text[at[0]:at[1]]); got != wanted[i] {
			t.Errorf("value %d is %s, not %s", i, got, wanted[i])
		}
	}
}

func TestAChangedIdIsStillAnId(t *testing.T) {
	for _, example := range []struct{ from, to string }{{"9", "1"}, {"f", "1"}, {"0", "1"}, {"a", "b"}, {"z", "x"}, {"-", ","}} {
		if got := string(changeByte([]byte(example.from), 0)); got != example.to {
			t.Errorf("%q becomes %q, not %q", example.from, got, example.to)
		}
	}
}

func TestASilentComparisonIsReported(t *testing.T) {
	tally := Tally{Tried: 1, Unnoticed: map[string][]string{"id": {"somewhere"}}}
	var out strings.Builder
	if tally.Print(&out) == nil {
		t.Fatal("an unnoticed id passed")
	}
	if (Tally{}).Print(&out) == nil {
		t.Fatal("a transcript without a reply passed")
	}
}

func TestOneReplyOfEachScenarioIsAlteredAndEachHasToMakeADifference(t *testing.T) {
	recorded := recorded(t)
	again := recorded.Scenarios[0]
	again.Name = "two"
	recorded.Scenarios = append(recorded.Scenarios, again, transcript.Scenario{Name: "silent"})
	picked := pick(recorded, map[string]int{}, rand.New(rand.NewPCG(1, 1)))
	if len(picked) != 2 || picked[0].Scenario != "one" || picked[1].Scenario != "two" {
		t.Fatalf("%v", picked)
	}
	live := &liveRun{config: suite.Config{Log: t.Logf}}
	ofOne := []compare.Difference{{Scenario: "one"}}
	if wrong := live.judge(picked[:1], ofOne, []bool{true}); len(wrong) != 0 {
		t.Fatalf("noticed, but reported: %v", wrong)
	}
	if wrong := live.judge(picked, ofOne, []bool{true, true}); len(wrong) != 1 {
		t.Fatalf("a difference of one scenario counts in another: %v", wrong)
	}
	if wrong := live.judge(picked[:1], ofOne, []bool{false}); len(wrong) != 1 {
		t.Fatalf("an alteration that was never made passed: %v", wrong)
	}
}
