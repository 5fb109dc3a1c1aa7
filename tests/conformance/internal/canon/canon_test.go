package canon

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/transcript"
)

const (
	firstID  = "1111111111111111111111111111111111111111111111111111111111111111"
	secondID = "2222222222222222222222222222222222222222222222222222222222222222"
	digest   = "sha256:3333333333333333333333333333333333333333333333333333333333333333"
	// One minute in the life of a scenario, in ns.
	started = int64(1_700_000_000_000_000_000)
	ended   = started + 60_000_000_000
)

func reading() *mask {
	mask := newMask(map[string]string{"logs": "/tmp/logs-1", "cgroups": "/kube"}, started)
	mask.endedNS = ended
	return mask
}

func TestTextIsReplacedByTypeAndNumberedByFirstAppearance(t *testing.T) {
	mask := reading()
	for _, example := range []struct{ text, wanted string }{
		{"no such container " + firstID, "no such container id#1"},
		{secondID + " is not " + firstID, "id#2 is not id#1"},
		{"sandbox " + firstID[:13], "sandbox id#1:13"},
		{"abcdefabcdef is nobody's beginning", "abcdefabcdef is nobody's beginning"},
		{"image " + digest, "image " + digest},
		{"http://127.0.0.1:40001/exec/aB3_x-9Z", "http://127.0.0.1:port#1/exec/token#1"},
		{"http://127.0.0.1:40001/attach/bB3_x-9Z", "http://127.0.0.1:port#1/attach/token#2"},
		{"ws://127.0.0.1:40001/exec/cB3_x9Z-: bad status", "ws://127.0.0.1:port#1/exec/token#3: bad status"},
		{"/proc/4711/ns/net and /proc/4712", "/proc/pid#1/ns/net and /proc/pid#2"},
		{"/tmp/logs-1/pod/main.log under /kube/besteffort", "<logs>/pod/main.log under <cgroups>/besteffort"},
		{"current usage: 344064, peak usage: 1", "current usage: measured, peak usage: measured"},
		{"at 2023-11-14T22:13:21.5Z", "at time#1"},
		{"at 2023-11-14T22:13:21Z", "at second"},
		{"/ns/netns/7bbcaeda-db41-42db-89bb-f5b81ece8879", "/ns/netns/temp#1"},
		{"/ns/utsns/7bbcaeda-db41-42db-89bb-f5b81ece8879", "/ns/utsns/temp#1"},
		{"handlers: map[runc:0xdb82177680]", "handlers: map[runc:pointer]"},
		{"never: 0001-01-01T00:00:00Z", "never: 0001-01-01T00:00:00Z"},
		{"10.0.0.1 and 8080 stay", "10.0.0.1 and 8080 stay"},
	} {
		if got := mask.text(example.text); got != example.wanted {
			t.Errorf("%q\n reads %q\n not   %q", example.text, got, example.wanted)
		}
	}
}

func TestTextThatOnlyResemblesAMaskedTypeIsComparedAsItIs(t *testing.T) {
	mask := reading()
	for _, text := range []string{
		// Ids.
		firstID[:63], firstID + "1", strings.ToUpper(strings.Repeat("a", 64)), digest, firstID[:13],
		// Ports and tokens.
		"10.0.0.1", "registry.local:5000", "pause:3", "1.2.3.4.5", "/execute/aB3_x-9Z", "/exec/aB3_x-9", "/exec/aB3_x-9Zq",
		// Process numbers.
		"/proc/self/ns/net", "/process/4711/x", "pid 4711", "4711", "/proc/4711x",
		// Measurements and temporary files of runc and containerd.
		"usage: 344064", "current usage is 344064", "concurrent usage: 344064", "limit 344064, memory usage: 1",
		"/tmp/runc-process", "/tmp/runc-processes-12", "/tmp/process12", "tmpmount12",
		// Namespaces and pointers of CRI-O.
		"/netns/7bbcaeda-db41-42db-89bb", "/ns/7bbcaeda-db41-42db-89bb-f5b81ece8879", "map[runc:0xdb]", "0xdb82177680",
		// Times.
		"2023-11-14 22:13:21", "2023-11-14T22:13:21", "22:13:21Z", "1969-12-31T23:59:59Z", "1700000000000000005",
		// Paths of another run.
		"/tmp/logs-2/pod", "/tmp/logs", "kube",
	} {
		if got := mask.text(text); got != text {
			t.Errorf("%q reads %q", text, got)
		}
	}
}

func TestOfWhatIsMaskedTheRestOfTheTextIsCompared(t *testing.T) {
	for _, pair := range [][2]string{
		{"10.0.0.1:40001", "10.0.0.2:40001"},
		{"http://127.0.0.1:40001/exec/aB3_x-9Z", "http://127.0.0.1:40001/attach/aB3_x-9Z"},
		{"/proc/4711/ns/net", "/proc/4711/ns/ipc"},
		{"current usage: 1", "peak usage: 1"},
		{"/runc-process1", "/tmpmount1"},
		{"/tmp/logs-1/a", "/tmp/logs-1/b"},
		{"/tmp/logs-1", "/tmp/logs-12"},
		{"at 2023-11-14T22:13:21Z", "by 2023-11-14T22:13:21Z"},
	} {
		if a, b := reading().text(pair[0]), reading().text(pair[1]); a == b {
			t.Errorf("%q and %q both read %q", pair[0], pair[1], a)
		}
	}
}

func TestTimesKeepZeroSignAndPeriod(t *testing.T) {
	mask := reading()
	for _, example := range []struct {
		ns     int64
		wanted string
	}{
		{0, "0"},
		{-62135596800000000, "-62135596800000000"},
		{started + 5, "time#1"},
		{started + 6, "time#2"},
		{started + 5, "time#1"},
		{started - 1, "earlier time#3"},
		{ended + 1, "future time#4"},
	} {
		if got := mask.time(example.ns); got != example.wanted {
			t.Errorf("%d reads %q, not %q", example.ns, got, example.wanted)
		}
	}
}

func leaves(t *testing.T, method string, reply proto.Message) map[string]string {
	t.Helper()
	data, err := proto.Marshal(reply)
	if err != nil {
		t.Fatal(err)
	}
	scenario := &transcript.Scenario{Name: "s", StartedNS: started, Steps: []transcript.Step{{
		Name: "step", Method: method, EndedNS: ended, Replies: []transcript.Message{transcript.NewReply(method, data)},
	}}}
	found := map[string]string{}
	for _, leaf := range Scenario(nil, scenario) {
		if _, twice := found[leaf.Path]; twice {
			t.Fatalf("two leaves at %s", leaf.Path)
		}
		found[leaf.Path] = leaf.Value
	}
	return found
}

func TestEveryKindOfFieldHasItsLeaf(t *testing.T) {
	reply := &runtime.ContainerStatsResponse{Stats: &runtime.ContainerStats{
		Attributes: &runtime.ContainerAttributes{Id: firstID, Labels: map[string]string{"a": "b"}},
		Cpu: &runtime.CpuUsage{
			Timestamp: started + 2, UsageCoreNanoSeconds: &runtime.UInt64Value{Value: 7},
			UsageNanoCores: &runtime.UInt64Value{Value: 9},
		},
		Memory: &runtime.MemoryUsage{Timestamp: started + 1, RssBytes: &runtime.UInt64Value{}},
	}}
	found := leaves(t, runtime.RuntimeService_ContainerStats_FullMethodName, reply)
	for path, wanted := range map[string]string{
		"reply.stats.attributes.id":                        `"id#1"`,
		"reply.stats.attributes.labels[a]":                 `"b"`,
		"reply.stats.cpu.timestamp":                        "sampled",
		"reply.stats.cpu.usage_core_nano_seconds.value":    "measured",
		"reply.stats.cpu.usage_nano_cores.$present":        "{}",
		"reply.stats.memory.rss_bytes.$present":            "{}",
		"replies.$order-of-times":                          "memory.timestamp<cpu.timestamp",
		"reply.stats.memory.rss_bytes.value":               "",
		"reply.stats.cpu.usage_nano_cores.value":           "",
		"reply.stats.writable_layer.$present":              "",
		"reply.stats.attributes.$present":                  "{}",
		"reply.stats.memory.working_set_bytes.$present":    "",
		"reply.stats.attributes.metadata.name":             "",
		"reply.stats.cpu.usage_core_nano_seconds.$present": "{}",
	} {
		if found[path] != wanted {
			t.Errorf("%s reads %q, not %q", path, found[path], wanted)
		}
	}
}

func TestAnImagesIDIsContent(t *testing.T) {
	reply := &runtime.ContainerStatusResponse{Status: &runtime.ContainerStatus{
		Id: firstID, ImageId: secondID, Image: &runtime.ImageSpec{Image: "localhost:5000/a@" + digest},
	}}
	found := leaves(t, runtime.RuntimeService_ContainerStatus_FullMethodName, reply)
	for path, wanted := range map[string]string{
		"reply.status.id":          `"id#1"`,
		"reply.status.image_id":    `"` + secondID + `"`,
		"reply.status.image.image": `"localhost:port#1/a@` + digest + `"`,
	} {
		if found[path] != wanted {
			t.Errorf("%s reads %q, not %q", path, found[path], wanted)
		}
	}
}

func TestVerboseInfoIsComparedValueByValue(t *testing.T) {
	info := `{"pid":77,"started":1700000000000000005,"at":"2023-11-14T22:13:20.000000005Z","list":[1,"x"],"id":"` + firstID + `"}`
	reply := &runtime.ContainerStatusResponse{Info: map[string]string{"info": info, "plain": "not JSON"}}
	found := leaves(t, runtime.RuntimeService_ContainerStatus_FullMethodName, reply)
	for path, wanted := range map[string]string{
		"reply.info[info].pid":          "pid#1",
		"reply.info[info].started":      "time#1",
		"reply.info[info].at":           `"time#1"`,
		"reply.info[info].list.$length": "2",
		"reply.info[info].list[0]":      "1",
		"reply.info[info].list[1]":      `"x"`,
		"reply.info[info].id":           `"id#1"`,
		"reply.info[plain]":             `"not JSON"`,
	} {
		if found[path] != wanted {
			t.Errorf("%s reads %q, not %q", path, found[path], wanted)
		}
	}
}

func TestOnlyWhatCRIOWritesInRandomOrderIsReadByKey(t *testing.T) {
	info := `{"io.kubernetes.cri-o.Labels":"{\"b\":\"1\",\"a\":\"2\"}","originals":"{\"b\":1}",` +
		`"DisallowedAnnotations":["y","x"],"list":["y","x"]}`
	reply := &runtime.ContainerStatusResponse{Info: map[string]string{"info": info}}
	found := leaves(t, runtime.RuntimeService_ContainerStatus_FullMethodName, reply)
	for path, wanted := range map[string]string{
		"reply.info[info].io.kubernetes.cri-o.Labels.a": `"2"`,
		"reply.info[info].io.kubernetes.cri-o.Labels.b": `"1"`,
		"reply.info[info].originals":                    `"{\"b\":1}"`,
		"reply.info[info].DisallowedAnnotations[0]":     `"x"`,
		"reply.info[info].list[0]":                      `"y"`,
	} {
		if found[path] != wanted {
			t.Errorf("%s reads %q, not %q", path, found[path], wanted)
		}
	}
}

func TestNumbersInVerboseInfoAreComparedButForProcessesAndTimes(t *testing.T) {
	info := `{"pids":77,"ppid":78,"uid":79,"pid":-1,"Pid":0,"before":1499999999999999999,"after":3000000000000000001,"rate":1.5}`
	reply := &runtime.ContainerStatusResponse{Info: map[string]string{"info": info, "pid": "80"}}
	found := leaves(t, runtime.RuntimeService_ContainerStatus_FullMethodName, reply)
	for path, wanted := range map[string]string{
		"reply.info[info].pids":   "77",
		"reply.info[info].ppid":   "78",
		"reply.info[info].uid":    "79",
		"reply.info[info].pid":    "-1",
		"reply.info[info].Pid":    "0",
		"reply.info[info].before": "1499999999999999999",
		"reply.info[info].after":  "3000000000000000001",
		"reply.info[info].rate":   "1.5",
		"reply.info[pid]":         "80",
	} {
		if found[path] != wanted {
			t.Errorf("%s reads %q, not %q", path, found[path], wanted)
		}
	}
}

func TestListsInRandomOrderReadTheSame(t *testing.T) {
	pods := []*runtime.PodSandbox{
		{Id: firstID, Metadata: &runtime.PodSandboxMetadata{Name: "b"}},
		{Id: secondID, Metadata: &runtime.PodSandboxMetadata{Name: "a"}},
	}
	method := runtime.RuntimeService_ListPodSandbox_FullMethodName
	forward := leaves(t, method, &runtime.ListPodSandboxResponse{Items: pods})
	backward := leaves(t, method, &runtime.ListPodSandboxResponse{Items: []*runtime.PodSandbox{pods[1], pods[0]}})
	for path, value := range forward {
		if backward[path] != value {
			t.Errorf("%s reads %q and %q", path, value, backward[path])
		}
	}
	// The first by name is numbered first.
	if got := forward["reply.items[a].id"]; got != `"id#1"` {
		t.Errorf("the pod named a has %s", got)
	}
}

func TestUnknownFieldsAndEmptyValuesAreLeaves(t *testing.T) {
	reply := &runtime.StartContainerResponse{}
	// Field 19999 as varint 1.
	reply.ProtoReflect().SetUnknown([]byte{0xf8, 0xe1, 0x09, 0x01})
	found := leaves(t, runtime.RuntimeService_StartContainer_FullMethodName, reply)
	if found["reply.#19999"] != "1" {
		t.Errorf("read %v", found)
	}
}

func TestWhiteSpaceInJSONIsSeen(t *testing.T) {
	if layout(`{"a":1}`) == layout(`{"a": 1}`) {
		t.Error("a blank went unseen")
	}
	if layout(`{"a":[1,2]}`) != layout(`{"b":[30,"x"]}`) {
		t.Error("values are no part of the layout")
	}
	if strings.Contains(layout(`{"secret":"value"}`), "value") {
		t.Error("the layout holds a value")
	}
}
