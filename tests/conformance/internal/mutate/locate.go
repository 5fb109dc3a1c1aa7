// Package mutate alters recorded replies, one place at a time, to show that a
// comparison notices.
package mutate

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"koord/conformance/internal/wire"
)

// hop leads from a message to one of its fields: by number and, where there
// are several, by map key or by position among those of the number.
type hop struct {
	number protowire.Number
	index  int
	key    string
	isMap  bool
	name   string
}

// locator leads from the root of a reply to a field.
type locator []hop

func (l locator) String() string {
	var out strings.Builder
	for _, hop := range l {
		out.WriteByte('.')
		out.WriteString(hop.name)
		if hop.isMap {
			fmt.Fprintf(&out, "[%s]", hop.key)
		} else if hop.index > 0 {
			fmt.Fprintf(&out, "[%d]", hop.index)
		}
	}
	return strings.TrimPrefix(out.String(), ".")
}

// find returns the field and the message around it. Where a list came in
// another order than when the locator was made, an element that has the field
// stands in for the one that was meant.
func (l locator) find(message *wire.Message) (*wire.Message, *wire.Field) {
	if len(l) == 0 {
		return nil, nil
	}
	for _, field := range l[0].candidates(message) {
		if len(l) == 1 {
			return message, field
		}
		if field.Message == nil {
			continue
		}
		if around, found := l[1:].find(field.Message); found != nil {
			return around, found
		}
	}
	return nil, nil
}

// candidates lists the fields that the hop may mean, the best first.
func (h hop) candidates(message *wire.Message) []*wire.Field {
	var list []*wire.Field
	for _, field := range message.Fields {
		switch {
		case field.Number != h.number:
		case !h.isMap:
			list = append(list, field)
		case field.Message != nil && entryKey(field.Message) == h.key:
			return []*wire.Field{field}
		}
	}
	if h.index > 0 && h.index < len(list) {
		list[0], list[h.index] = list[h.index], list[0]
	}
	return list
}

// each visits every field of a reply, outer ones first.
func each(root *wire.Message, visit func(locator, *wire.Field)) {
	walk(nil, root, visit)
}

func walk(at locator, message *wire.Message, visit func(locator, *wire.Field)) {
	counts := map[protowire.Number]int{}
	for _, field := range message.Fields {
		hop := hop{number: field.Number, index: counts[field.Number], name: field.Name()}
		counts[field.Number]++
		if field.Known() && field.Descriptor.IsMap() && field.Message != nil {
			hop.isMap, hop.key = true, entryKey(field.Message)
		}
		here := append(append(locator{}, at...), hop)
		visit(here, field)
		if field.Message != nil {
			walk(here, field.Message, visit)
		}
	}
}

func entryKey(entry *wire.Message) string {
	for _, field := range entry.Fields {
		if field.Number == 1 {
			return string(field.Bytes)
		}
	}
	return ""
}
