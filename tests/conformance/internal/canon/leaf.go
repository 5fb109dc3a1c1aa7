// Package canon turns a recorded scenario into a flat list of leaves that two
// runs must share: one line for every field of every message, with ids, times,
// addresses, tokens and process numbers replaced by numbered names.
//
// A replacement is by type only, and numbered in order of first appearance: a
// value that occurs five times reads `id#1` five times, so altering one of them
// still shows. What is measured (CPU time, memory in use) keeps whether it is
// zero. Nothing else is replaced.
package canon

import (
	"fmt"
	"maps"
	"sort"
	"strconv"
	"strings"

	"koord/conformance/internal/transcript"
	"koord/conformance/internal/wire"
)

// Leaf is one comparable fact.
type Leaf struct {
	Step string
	// Path names the field within the step, such as `reply.status.state`.
	Path string
	// Object is the pod ("name") or container ("pod/name") that the innermost
	// enclosing message describes, Field the path within that message.
	Object string
	Field  string
	Value  string
}

// Key identifies the leaf within its scenario.
func (l Leaf) Key() string { return l.Step + "\x00" + l.Path }

// Scenario lists the leaves of a scenario in a fixed order.
func Scenario(paths map[string]string, scenario *transcript.Scenario) []Leaf {
	reader := NewReader(paths, scenario)
	var leaves []Leaf
	for i := range scenario.Steps {
		leaves = append(leaves, reader.Step(&scenario.Steps[i])...)
	}
	return leaves
}

// Reader reads a scenario step by step. What was numbered in one step keeps
// its number in the next.
type Reader struct{ mask *mask }

// NewReader starts before the first step.
func NewReader(paths map[string]string, scenario *transcript.Scenario) *Reader {
	return &Reader{mask: newMask(paths, scenario.StartedNS)}
}

// Step lists the leaves of the next step.
func (r *Reader) Step(step *transcript.Step) []Leaf {
	walk := &walker{mask: r.mask, seen: map[string]int{}}
	walk.step(step)
	return walk.leaves
}

// Clone gives a reader that goes on from the same place by itself.
func (r *Reader) Clone() *Reader {
	copied := *r.mask
	copied.names = make(map[string]map[string]string, len(r.mask.names))
	for kind, names := range r.mask.names {
		copied.names[kind] = maps.Clone(names)
	}
	return &Reader{mask: &copied}
}

// Named lists the values that were numbered so far, by kind.
func (r *Reader) Named() map[string]map[string]string { return r.mask.names }

// walker collects leaves. Its place (path, object, field) moves with the walk.
type walker struct {
	mask   *mask
	leaves []Leaf
	seen   map[string]int
	name   string
	times  *timeScope
}

// place is where in a step a value stands.
type place struct {
	path   string
	object string
	field  string
}

func (p place) child(name string) place {
	return place{path: join(p.path, name), object: p.object, field: join(p.field, name)}
}

func (p place) element(key string) place {
	return place{path: p.path + "[" + key + "]", object: p.object, field: p.field + "[" + key + "]"}
}

func join(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + "." + name
}

func (w *walker) step(step *transcript.Step) {
	w.name = step.Name
	w.mask.endedNS = step.EndedNS
	if step.Method != "" {
		w.emit(place{path: "method"}, step.Method)
	}
	if step.Observation {
		w.emit(place{path: "observed"}, strconv.Quote(w.mask.text(step.Observed)))
	}
	if step.Request != nil {
		w.request(step)
	}
	w.scope("replies", func() {
		for i := range step.Replies {
			at := place{path: "reply"}
			if len(step.Replies) > 1 {
				at = at.element(strconv.Itoa(i))
			}
			w.reply(at, step.Method, step.Replies[i].Bytes)
		}
	})
	w.metadata("header", step.Header)
	w.metadata("trailer", step.Trailer)
	if step.Status != nil {
		w.status(step.Status)
	}
}

func (w *walker) request(step *transcript.Step) {
	at := place{path: "request"}
	if step.Request.Bytes == nil {
		w.emit(place{path: "request-size"}, strconv.Itoa(step.Request.Size))
		return
	}
	descriptor, _ := wire.Method(step.Method)
	message, err := wire.Decode(descriptor, step.Request.Bytes)
	if err != nil {
		w.emit(at, fmt.Sprintf("%x", step.Request.Bytes))
		return
	}
	w.scope("request", func() { w.message(at, message) })
}

func (w *walker) reply(at place, method string, data []byte) {
	_, descriptor := wire.Method(method)
	message, err := wire.Decode(descriptor, data)
	if err != nil {
		w.emit(at, fmt.Sprintf("not protobuf: %x", data))
		return
	}
	w.message(at, message)
}

func (w *walker) metadata(kind string, metadata transcript.Metadata) {
	names := make([]string, 0, len(metadata))
	for name := range metadata {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		at := place{path: kind}.element(name)
		for i, value := range metadata[name] {
			w.emit(at.element(strconv.Itoa(i)), strconv.Quote(w.mask.text(value)))
		}
	}
}

func (w *walker) status(status *transcript.Status) {
	at := place{path: "status"}
	w.emit(at.child("code"), fmt.Sprintf("%d %s", status.Code, status.Name))
	w.emit(at.child("message"), strconv.Quote(w.mask.text(status.Message)))
	for i, detail := range status.Details {
		entry := at.child("details").element(strconv.Itoa(i))
		w.emit(entry.child("type_url"), strconv.Quote(detail.TypeURL))
		w.emit(entry.child("value"), fmt.Sprintf("%x", detail.Value))
	}
}

func (w *walker) emit(at place, value string) {
	leaf := Leaf{Step: w.name, Path: at.path, Object: at.object, Field: at.field, Value: value}
	if n := w.seen[leaf.Key()]; n > 0 {
		w.seen[leaf.Key()] = n + 1
		leaf.Path = fmt.Sprintf("%s#%d", leaf.Path, n+1)
	} else {
		w.seen[leaf.Key()] = 1
	}
	w.leaves = append(w.leaves, leaf)
}

// scope runs walk and then states in which order the times stood that were met
// inside, but not inside an inner scope.
func (w *walker) scope(name string, walk func()) {
	outer := w.times
	w.times = &timeScope{}
	walk()
	if order := w.times.order(); order != "" {
		w.emit(place{path: name + ".$order-of-times"}, order)
	}
	w.times = outer
}

// timeScope remembers the times of one message or list element.
type timeScope struct {
	ns    []int64
	names []string
}

func (s *timeScope) add(ns int64, name string) {
	s.ns = append(s.ns, ns)
	s.names = append(s.names, name)
}

// order renders "a<b=c": the names in order of time. One time alone has none.
func (s *timeScope) order() string {
	if len(s.ns) < 2 {
		return ""
	}
	index := make([]int, len(s.ns))
	for i := range index {
		index[i] = i
	}
	sort.SliceStable(index, func(a, b int) bool { return s.ns[index[a]] < s.ns[index[b]] })
	var out strings.Builder
	for i, at := range index {
		if i > 0 {
			if s.ns[index[i-1]] == s.ns[at] {
				out.WriteByte('=')
			} else {
				out.WriteByte('<')
			}
		}
		out.WriteString(s.names[at])
	}
	return out.String()
}
