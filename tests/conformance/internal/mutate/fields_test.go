package mutate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"koord/conformance/internal/transcript"
	"koord/conformance/internal/wire"
)

// filler fills messages, each field with a value that no other has, and lists
// with as many elements.
type filler struct{ elements, values int64 }

// message fills every field of a message and of those inside of it.
func (f *filler) message(descriptor protoreflect.MessageDescriptor) protoreflect.Message {
	message := dynamicpb.NewMessage(descriptor)
	for i := range descriptor.Fields().Len() {
		switch field := descriptor.Fields().Get(i); {
		case field.IsMap():
			key := f.scalar(field.MapKey()).MapKey()
			message.Mutable(field).Map().Set(key, f.value(field.MapValue()))
		case field.IsList():
			for range f.elements {
				message.Mutable(field).List().Append(f.value(field))
			}
		default:
			message.Set(field, f.value(field))
		}
	}
	return message
}

func (f *filler) value(field protoreflect.FieldDescriptor) protoreflect.Value {
	if field.Message() != nil {
		return protoreflect.ValueOfMessage(f.message(field.Message()))
	}
	return f.scalar(field)
}

// scalar gives times a thousand ns apart, so that another value keeps the order.
func (f *filler) scalar(field protoreflect.FieldDescriptor) protoreflect.Value {
	f.values++
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(f.values))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(f.values))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1_000 * f.values)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(f.values))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(f.values))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("text-%d", f.values))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(fmt.Sprintf("bytes-%d", f.values)))
	default:
		panic(fmt.Sprintf("%s is of a kind that the CRI did not have", field.FullName()))
	}
}

// fields visits every field of a message and of those inside of it, each with
// the name of the field around it, or of the message where there is none.
func fields(
	message protoreflect.MessageDescriptor, around protoreflect.FullName,
	visit func(around protoreflect.FullName, field protoreflect.FieldDescriptor),
) {
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		visit(around, field)
		if field.Message() != nil {
			fields(field.Message(), field.FullName(), visit)
		}
	}
}

// placeOf names where an alteration is made: a field by the one around it.
func placeOf(message protoreflect.MessageDescriptor, at locator) string {
	around := message.FullName()
	for _, hop := range at[:len(at)-1] {
		field := message.Fields().ByNumber(hop.number)
		around, message = field.FullName(), field.Message()
	}
	return string(around.Append(message.Fields().ByNumber(at[len(at)-1].number).Name()))
}

// full is a recorded call whose reply has every field that there is.
func full(t *testing.T, method string, elements int64) (*reading, []byte) {
	t.Helper()
	_, descriptor := wire.Method(method)
	filler := &filler{elements: elements}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(filler.message(descriptor).Interface())
	if err != nil {
		t.Fatal(err)
	}
	step := transcript.Step{
		Name: "step", Method: method, EndedNS: 1 << 62, Status: &transcript.Status{Name: "OK"},
		Replies: []transcript.Message{{Bytes: data}},
	}
	return read(nil, &transcript.Scenario{Name: "full", StartedNS: 1, Steps: []transcript.Step{step}}), data
}

// seen tells whether the comparison sees that a call was answered otherwise.
func (r *reading) seen(reply []byte) bool {
	altered := r.scenario.Steps[0]
	altered.Replies = []transcript.Message{{Bytes: reply}}
	return r.noticed(0, &altered)
}

// unseen makes every alteration of a full reply of a method, notes where it was
// made, and where the comparison saw none of what was made.
func unseen(t *testing.T, method string, made map[string]bool, found map[string]map[How]bool) {
	t.Helper()
	_, descriptor := wire.Method(method)
	original, data := full(t, method, 1)
	for _, alteration := range Of("full", &original.scenario.Steps[0]) {
		if len(alteration.at) == 0 {
			continue
		}
		reply, err := alteration.Apply(method, data)
		if err != nil {
			t.Fatalf("%s: %s: %v", method, alteration, err)
		}
		place := placeOf(descriptor, alteration.at)
		made[place] = true
		if !original.seen(reply) {
			if found[place] == nil {
				found[place] = map[How]bool{}
			}
			found[place][alteration.How] = true
		}
	}
}

// masked lists every field whose alteration to another value of its type no
// comparison sees, by the field around it, and what else it does not see there.
// The values of these fields differ between any two honest runs: times of
// events, times of samples, measurements, and measurements that may be zero by
// chance, of which nothing is seen.
const masked = `
	ContainerEventResponse.containers_statuses.created_at change
	ContainerEventResponse.containers_statuses.finished_at change
	ContainerEventResponse.containers_statuses.started_at change
	ContainerEventResponse.created_at change
	ContainerEventResponse.pod_sandbox_status.created_at change
	ContainerStatusResponse.status.created_at change
	ContainerStatusResponse.status.finished_at change
	ContainerStatusResponse.status.started_at change
	ListContainersResponse.containers.created_at change
	ListPodSandboxResponse.items.created_at change
	PodSandboxStatusResponse.containers_statuses.created_at change
	PodSandboxStatusResponse.containers_statuses.finished_at change
	PodSandboxStatusResponse.containers_statuses.started_at change
	PodSandboxStatusResponse.status.created_at change
	StreamContainersResponse.containers.created_at change
	StreamPodSandboxesResponse.pod_sandboxes.created_at change

	ContainerMetrics.metrics.timestamp change
	ContainerStats.cpu.timestamp change
	ContainerStats.io.timestamp change
	ContainerStats.memory.timestamp change
	ContainerStats.swap.timestamp change
	ContainerStats.writable_layer.timestamp change
	ImageFsInfoResponse.container_filesystems.timestamp change
	ImageFsInfoResponse.image_filesystems.timestamp change
	LinuxPodSandboxStats.cpu.timestamp change
	LinuxPodSandboxStats.io.timestamp change
	LinuxPodSandboxStats.memory.timestamp change
	LinuxPodSandboxStats.network.timestamp change
	LinuxPodSandboxStats.process.timestamp change
	PodSandboxMetrics.metrics.timestamp change
	PodSandboxStatusResponse.timestamp change
	WindowsContainerStats.cpu.timestamp change
	WindowsContainerStats.memory.timestamp change
	WindowsContainerStats.writable_layer.timestamp change
	WindowsPodSandboxStats.cpu.timestamp change
	WindowsPodSandboxStats.memory.timestamp change
	WindowsPodSandboxStats.network.timestamp change
	WindowsPodSandboxStats.process.timestamp change

	CpuUsage.usage_core_nano_seconds.value change
	FilesystemUsage.inodes_used.value change
	FilesystemUsage.used_bytes.value change
	MemoryUsage.available_bytes.value change
	MemoryUsage.rss_bytes.value change
	MemoryUsage.usage_bytes.value change
	MemoryUsage.working_set_bytes.value change
	NetworkInterfaceUsage.rx_errors.value change
	NetworkInterfaceUsage.tx_errors.value change
	ProcessUsage.process_count.value change
	SwapUsage.swap_available_bytes.value change
	SwapUsage.swap_usage_bytes.value change
	WindowsCpuUsage.usage_core_nano_seconds.value change
	WindowsCpuUsage.usage_nano_cores.value change
	WindowsFilesystemUsage.used_bytes.value change
	WindowsMemoryUsage.available_bytes.value change
	WindowsMemoryUsage.commit_memory_bytes.value change
	WindowsMemoryUsage.page_faults.value change
	WindowsMemoryUsage.working_set_bytes.value change
	WindowsNetworkInterfaceUsage.rx_bytes.value change
	WindowsNetworkInterfaceUsage.rx_packets_dropped.value change
	WindowsNetworkInterfaceUsage.tx_bytes.value change
	WindowsNetworkInterfaceUsage.tx_packets_dropped.value change
	WindowsProcessUsage.process_count.value change

	CpuUsage.usage_nano_cores.value blank change drop
	MemoryUsage.major_page_faults.value blank change drop
	MemoryUsage.page_faults.value blank change drop
	Metric.value.value blank change drop
	NetworkInterfaceUsage.rx_bytes.value blank change drop
	NetworkInterfaceUsage.tx_bytes.value blank change drop
	PsiStats.Full.Avg10 blank change drop
	PsiStats.Full.Avg300 blank change drop
	PsiStats.Full.Avg60 blank change drop
	PsiStats.Full.Total blank change drop
	PsiStats.Some.Avg10 blank change drop
	PsiStats.Some.Avg300 blank change drop
	PsiStats.Some.Avg60 blank change drop
	PsiStats.Some.Total blank change drop
`

func TestEveryFieldOfTheCRIIsComparedButForThoseOfMaskedTypes(t *testing.T) {
	made, found := map[string]bool{}, map[string]map[How]bool{}
	all := map[string]bool{}
	for _, method := range slices.Concat(wire.UnaryMethods(), wire.StreamMethods()) {
		_, reply := wire.Method(method)
		fields(reply, reply.FullName(), func(around protoreflect.FullName, field protoreflect.FieldDescriptor) {
			all[string(around.Append(field.Name()))] = true
		})
		unseen(t, method, made, found)
	}
	for place := range all {
		if !made[place] {
			t.Errorf("%s was never altered", place)
		}
	}
	wanted := map[string]string{}
	for line := range strings.Lines(masked) {
		if place, hows, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			wanted["runtime.v1."+place] = hows
		}
	}
	for place, hows := range found {
		got := fmt.Sprint(slices.Sorted(maps.Keys(hows)))
		if got = strings.Trim(got, "[]"); got != wanted[place] {
			t.Errorf("%s: unseen are %q and not %q", place, got, wanted[place])
		}
	}
	for place := range wanted {
		if found[place] == nil {
			t.Errorf("%s is not masked", place)
		}
	}
}

// disorders exchanges the first two elements of each list of a reply, one list
// at a time.
func disorders(root *wire.Message, visit func(field protoreflect.FullName, reply []byte)) {
	each(root, func(at locator, field *wire.Field) {
		switch {
		case field.Descriptor.IsMap():
		case field.IsPacked():
			elements := field.Packed
			elements[0], elements[1] = elements[1], elements[0]
			visit(field.Descriptor.FullName(), root.Encode())
			elements[0], elements[1] = elements[1], elements[0]
		case at[len(at)-1].index == 1:
			around, _ := at.find(root)
			isOne := func(other *wire.Field) bool { return other.Number == field.Number }
			first, second := slices.IndexFunc(around.Fields, isOne), slices.Index(around.Fields, field)
			exchange := func() {
				around.Fields[first], around.Fields[second] = around.Fields[second], around.Fields[first]
			}
			exchange()
			visit(field.Descriptor.FullName(), root.Encode())
			exchange()
		}
	})
}

// unordered lists the lists whose order no comparison sees: those that a runtime
// makes of what it keeps in no order.
var unordered = []string{
	"ContainerEventResponse.containers_statuses",
	"ContainerMetrics.metrics",
	"Image.repo_tags",
	"LinuxPodSandboxStats.containers",
	"ListContainerStatsResponse.stats",
	"ListContainersResponse.containers",
	"ListImagesResponse.images",
	"ListMetricDescriptorsResponse.descriptors",
	"ListPodSandboxMetricsResponse.pod_metrics",
	"ListPodSandboxResponse.items",
	"ListPodSandboxStatsResponse.stats",
	"PodSandboxMetrics.container_metrics",
	"PodSandboxMetrics.metrics",
	"PodSandboxStatusResponse.containers_statuses",
	"StatusResponse.runtime_handlers",
}

func TestTheOrderOfEveryListOfTheCRIIsComparedButOfThoseThatHaveNone(t *testing.T) {
	lists, exchanged, found := map[string]bool{}, map[string]bool{}, map[string]bool{}
	short := func(name protoreflect.FullName) string { return strings.TrimPrefix(string(name), "runtime.v1.") }
	for _, method := range slices.Concat(wire.UnaryMethods(), wire.StreamMethods()) {
		original, data := full(t, method, 2)
		_, descriptor := wire.Method(method)
		fields(descriptor, "", func(_ protoreflect.FullName, field protoreflect.FieldDescriptor) {
			if field.IsList() {
				lists[short(field.FullName())] = true
			}
		})
		root, err := wire.Decode(descriptor, data)
		if err != nil {
			t.Fatal(err)
		}
		disorders(root, func(field protoreflect.FullName, reply []byte) {
			exchanged[short(field)] = true
			if !original.seen(reply) {
				found[short(field)] = true
			}
		})
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, unordered) {
		t.Errorf("of these lists the order is not seen: %v", got)
	}
	if !maps.Equal(lists, exchanged) {
		t.Errorf("of %v only %v were exchanged", lists, exchanged)
	}
}
