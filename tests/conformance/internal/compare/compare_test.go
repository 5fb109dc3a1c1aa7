package compare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/transcript"
)

const method = runtime.RuntimeService_ContainerStatus_FullMethodName

// recorded is a transcript of one ContainerStatus with these CPU shares.
func recorded(t *testing.T, shares int64, annotations map[string]string) *transcript.Transcript {
	t.Helper()
	data, err := proto.Marshal(&runtime.ContainerStatusResponse{Status: &runtime.ContainerStatus{
		Id:          strings.Repeat("a", 64),
		Metadata:    &runtime.ContainerMetadata{Name: "main"},
		Labels:      map[string]string{"io.kubernetes.pod.name": "be"},
		Annotations: annotations,
		Resources:   &runtime.ContainerResources{Linux: &runtime.LinuxContainerResources{CpuShares: shares}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &transcript.Transcript{Scenarios: []transcript.Scenario{{
		Name: "classes", Steps: []transcript.Step{{
			Name: "status", Method: method, Status: &transcript.Status{Name: "OK"},
			Replies: []transcript.Message{transcript.NewReply(method, data)},
		}},
	}}}
}

func rules(t *testing.T, text string) []Announcement {
	t.Helper()
	path := filepath.Join(t.TempDir(), "allow.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := ReadAllowList(path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

const sharesRule = `[{"scenario":"classes","steps":["status"],"object":"be/main",
	"field":"resources.linux.cpu_shares","a":"2","b":"512","why":"batch CPU"}]`

func TestEqualRunsHaveNoDifference(t *testing.T) {
	report := Judge(Transcripts(recorded(t, 2, nil), recorded(t, 2, nil)), nil)
	if !report.OK() || len(report.Permitted) > 0 {
		t.Fatalf("%+v", report)
	}
}

func TestADifferenceNamesPlaceObjectAndBothValues(t *testing.T) {
	differences := Transcripts(recorded(t, 2, nil), recorded(t, 512, nil))
	wanted := Difference{
		Scenario: "classes", Step: "status", Path: "reply.status.resources.linux.cpu_shares",
		Object: "be/main", Field: "resources.linux.cpu_shares", A: "2", B: "512",
	}
	if len(differences) != 1 || differences[0] != wanted {
		t.Fatalf("%+v", differences)
	}
}

func TestOnlyTheAnnouncedValueIsPermitted(t *testing.T) {
	allowed := rules(t, sharesRule)
	if report := Judge(Transcripts(recorded(t, 2, nil), recorded(t, 512, nil)), allowed); !report.OK() {
		t.Fatalf("announced, but refused: %+v", report)
	}
	if report := Judge(Transcripts(recorded(t, 2, nil), recorded(t, 513, nil)), allowed); report.OK() {
		t.Fatal("another value than the announced one passed")
	}
	if report := Judge(Transcripts(recorded(t, 3, nil), recorded(t, 512, nil)), allowed); report.OK() {
		t.Fatal("the announced value in place of another original passed")
	}
}

func TestAnAnnouncedDifferenceThatDoesNotComeFails(t *testing.T) {
	report := Judge(Transcripts(recorded(t, 2, nil), recorded(t, 2, nil)), rules(t, sharesRule))
	if report.OK() || len(report.Missing) != 1 {
		t.Fatalf("%+v", report)
	}
}

func TestAnAddedFieldIsADifference(t *testing.T) {
	differences := Transcripts(recorded(t, 2, nil), recorded(t, 2, map[string]string{"x": "y"}))
	if len(differences) != 1 || differences[0].A != Absent || differences[0].B != `"y"` {
		t.Fatalf("%+v", differences)
	}
}

func TestAScenarioOfOneSideIsADifference(t *testing.T) {
	none := &transcript.Transcript{}
	if len(Transcripts(recorded(t, 1, nil), none)) != 1 || len(Transcripts(none, recorded(t, 1, nil))) != 1 {
		t.Fatal("a missing scenario passed")
	}
}

func TestProposedRulesPermitExactlyWhatTheyCameFrom(t *testing.T) {
	differences := Transcripts(recorded(t, 2, nil), recorded(t, 512, nil))
	proposed := Propose(differences)
	if len(proposed) != 1 || proposed[0].Object != "be/main" || proposed[0].Steps[0] != "status" {
		t.Fatalf("%+v", proposed)
	}
}

func TestAListThatPermitsWholesaleIsRefused(t *testing.T) {
	for _, text := range []string{
		`[{"scenario":"classes","steps":["status"],"object":"be/main","a":"2","b":"3","why":"no field"}]`,
		`[{"scenario":"classes","steps":[],"object":"be/main","field":"f","a":"2","b":"3","why":"no step"}]`,
		`[{"scenario":"classes","steps":["s"],"object":"o","field":"f","a":"2","b":"3"}]`,
		`[{"scenario":"classes","unknown":1}]`,
	} {
		path := filepath.Join(t.TempDir(), "allow.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadAllowList(path); err == nil {
			t.Errorf("accepted %s", text)
		}
	}
}
