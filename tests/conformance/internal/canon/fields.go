package canon

import (
	"sort"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"koord/conformance/internal/wire"
)

// Nature is how a field's content is compared, by its declared type.
type Nature int

const (
	// Exact fields compare whole, after the replacements in text.
	Exact Nature = iota
	// Time fields are ns since 1970: numbered, with their order.
	Time
	// SampleTime fields are ns since 1970 of a measurement: their order within
	// the reply is kept.
	SampleTime
	// Measured fields compare whether they are zero.
	Measured
	// Volatile fields are measurements that may be zero by chance; only the
	// message around them is compared.
	Volatile
)

// timeFields are the names of the CRI's int64 times in ns.
var timeFields = map[protoreflect.Name]Nature{
	"created_at": Time, "started_at": Time, "finished_at": Time, "timestamp": SampleTime,
}

// volatileParents are the fields whose UInt64Value or PSI content may be zero
// or not without anything having happened.
var volatileParents = map[protoreflect.FullName]bool{
	"runtime.v1.CpuUsage.usage_nano_cores":      true,
	"runtime.v1.MemoryUsage.major_page_faults":  true,
	"runtime.v1.MemoryUsage.page_faults":        true,
	"runtime.v1.Metric.value":                   true,
	"runtime.v1.NetworkInterfaceUsage.rx_bytes": true,
	"runtime.v1.NetworkInterfaceUsage.tx_bytes": true,
	"runtime.v1.PsiStats.Full":                  true,
	"runtime.v1.PsiStats.Some":                  true,
}

// unorderedLists are the lists that runtimes fill in random order.
var unorderedLists = map[protoreflect.FullName]bool{
	"runtime.v1.ListPodSandboxResponse.items":                 true,
	"runtime.v1.ListContainersResponse.containers":            true,
	"runtime.v1.ListContainerStatsResponse.stats":             true,
	"runtime.v1.ListPodSandboxStatsResponse.stats":            true,
	"runtime.v1.LinuxPodSandboxStats.containers":              true,
	"runtime.v1.ListPodSandboxMetricsResponse.pod_metrics":    true,
	"runtime.v1.PodSandboxMetrics.metrics":                    true,
	"runtime.v1.PodSandboxMetrics.container_metrics":          true,
	"runtime.v1.ContainerMetrics.metrics":                     true,
	"runtime.v1.ListMetricDescriptorsResponse.descriptors":    true,
	"runtime.v1.ListImagesResponse.images":                    true,
	"runtime.v1.Image.repo_tags":                              true,
	"runtime.v1.StatusResponse.runtime_handlers":              true,
	"runtime.v1.PodSandboxStatusResponse.containers_statuses": true,
	"runtime.v1.ContainerEventResponse.containers_statuses":   true,
}

// imageFields name images. An image's id is its content, which CRI-O writes as it
// writes the ids that it makes up.
var imageFields = map[protoreflect.FullName]bool{
	"runtime.v1.Container.image_id":          true,
	"runtime.v1.Container.image_ref":         true,
	"runtime.v1.ContainerStatus.image_id":    true,
	"runtime.v1.ContainerStatus.image_ref":   true,
	"runtime.v1.Image.id":                    true,
	"runtime.v1.ImageSpec.image":             true,
	"runtime.v1.PullImageResponse.image_ref": true,
}

// NatureOf tells how a scalar field is compared. parent is the field that
// holds the message around it, nil at the root.
func NatureOf(parent, field protoreflect.FieldDescriptor) Nature {
	switch {
	case field == nil:
		return Exact
	case parent != nil && volatileParents[parent.FullName()]:
		return Volatile
	case field.FullName() == "runtime.v1.UInt64Value.value":
		return Measured
	case field.Kind() == protoreflect.Int64Kind:
		return timeFields[field.Name()]
	default:
		return Exact
	}
}

func (w *walker) message(at place, message *wire.Message) {
	w.messageIn(nil, at, message)
}

func (w *walker) messageIn(parent protoreflect.FieldDescriptor, at place, message *wire.Message) {
	if object := objectOf(message); object != "" {
		at.object, at.field = object, ""
	}
	w.emit(place{path: at.path + ".$present", object: at.object, field: join(at.field, "$present")}, "{}")
	for _, group := range byNumber(message.Fields) {
		w.group(parent, at, group)
	}
}

// group walks all occurrences of one field number.
func (w *walker) group(parent protoreflect.FieldDescriptor, at place, group []*wire.Field) {
	first := group[0]
	switch {
	case first.Known() && first.Descriptor.IsMap():
		sort.SliceStable(group, func(i, j int) bool { return mapKey(group[i]) < mapKey(group[j]) })
		for _, entry := range group {
			w.mapEntry(at.child(first.Name()).element(w.mask.text(mapKey(entry))), entry)
		}
	case first.Known() && first.Descriptor.IsList() && unorderedLists[first.Descriptor.FullName()]:
		w.unordered(at.child(first.Name()), group)
	case first.Known() && first.Descriptor.IsList():
		index := 0
		for _, field := range group {
			index = w.listPart(parent, at.child(first.Name()), field, index)
		}
	case len(group) > 1:
		for i, field := range group {
			w.value(parent, at.child(first.Name()).element(strconv.Itoa(i)), field)
		}
	default:
		w.value(parent, at.child(first.Name()), first)
	}
}

func (w *walker) listPart(parent protoreflect.FieldDescriptor, at place, field *wire.Field, index int) int {
	if !field.IsPacked() {
		element := at.element(strconv.Itoa(index))
		if field.Message != nil {
			w.scope(element.path, func() { w.value(parent, element, field) })
		} else {
			w.value(parent, element, field)
		}
		return index + 1
	}
	for _, bits := range field.Packed {
		w.emit(at.element(strconv.Itoa(index)), field.Scalar(bits))
		index++
	}
	return index
}

// unordered walks a list in the order of what its elements are, so that ids get
// their numbers in the same order in every run.
func (w *walker) unordered(at place, group []*wire.Field) {
	type element struct {
		field      *wire.Field
		label, key string
	}
	elements := make([]element, 0, len(group))
	for _, field := range group {
		label := "?"
		if field.Message != nil {
			label = labelOf(field.Message, w.mask)
		} else {
			label = w.mask.text(string(field.Bytes))
		}
		elements = append(elements, element{field: field, label: label, key: w.sortKey(field)})
	}
	sort.SliceStable(elements, func(i, j int) bool {
		if elements[i].label != elements[j].label {
			return elements[i].label < elements[j].label
		}
		return elements[i].key < elements[j].key
	})
	times := map[string]int{}
	for _, element := range elements {
		label := element.label
		times[label]++
		if n := times[label]; n > 1 {
			label += "#" + strconv.Itoa(n)
		}
		inner := at.element(label)
		w.scope(inner.path, func() { w.value(nil, inner, element.field) })
	}
}

// sortKey renders an element without giving out numbers.
func (w *walker) sortKey(field *wire.Field) string {
	peek := *w.mask
	peek.peek = true
	shadow := &walker{mask: &peek, seen: map[string]int{}, times: &timeScope{}}
	shadow.value(nil, place{}, field)
	var key strings.Builder
	for _, leaf := range shadow.leaves {
		key.WriteString(leaf.Path + "=" + leaf.Value + "\n")
	}
	return key.String()
}

func (w *walker) mapEntry(at place, entry *wire.Field) {
	value, given := "", false
	for _, field := range entry.Message.Fields {
		switch {
		case field.Number == 2 && field.Message != nil:
			w.messageIn(entry.Descriptor, at, field.Message)
			return
		case field.Number == 2 && field.Type == protowire.BytesType:
			value, given = string(field.Bytes), true
		case field.Number == 2:
			w.emit(at, field.Scalar(field.Bits))
			return
		case field.Number != 1:
			w.value(entry.Descriptor, at.child(field.Name()), field)
		}
	}
	if !given {
		w.emit(at, "<no value>")
		return
	}
	if entry.Descriptor.Name() == "info" && w.json(at, value) {
		return
	}
	w.emit(at, strconv.Quote(w.mask.text(value)))
}

func (w *walker) value(parent protoreflect.FieldDescriptor, at place, field *wire.Field) {
	switch nature := NatureOf(parent, field.Descriptor); {
	case nature == Volatile:
	case field.Message != nil:
		w.messageIn(field.Descriptor, at, field.Message)
	case nature == Measured && field.Bits != 0:
		w.emit(at, "measured")
	case nature == Time:
		name := w.mask.timeOf(at.object, int64(field.Bits))
		if !isCoarse(int64(field.Bits)) {
			w.times.add(int64(field.Bits), name)
		}
		w.emit(at, name)
	case nature == SampleTime:
		w.times.add(int64(field.Bits), at.field)
		w.emit(at, w.mask.sampleTime(int64(field.Bits)))
	case field.Known() && imageFields[field.Descriptor.FullName()] && isID(string(field.Bytes)):
		w.emit(at, strconv.Quote(string(field.Bytes)))
	case field.Type == protowire.BytesType && isText(field):
		w.emit(at, strconv.Quote(w.mask.text(string(field.Bytes))))
	case len(field.Bytes) > 0 || field.Type == protowire.BytesType:
		w.emit(at, strconv.Quote(string(field.Bytes)))
	default:
		w.emit(at, field.Scalar(field.Bits))
	}
}

func isText(field *wire.Field) bool {
	return !field.Known() || field.Descriptor.Kind() == protoreflect.StringKind
}

func byNumber(fields []*wire.Field) [][]*wire.Field {
	groups := map[protowire.Number][]*wire.Field{}
	for _, field := range fields {
		groups[field.Number] = append(groups[field.Number], field)
	}
	sorted := make([][]*wire.Field, 0, len(groups))
	for _, group := range groups {
		sorted = append(sorted, group)
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i][0].Number < sorted[j][0].Number })
	return sorted
}

func mapKey(entry *wire.Field) string {
	for _, field := range entry.Message.Fields {
		if field.Number == 1 {
			if field.Type == protowire.BytesType {
				return string(field.Bytes)
			}
			return field.Scalar(field.Bits)
		}
	}
	return ""
}
