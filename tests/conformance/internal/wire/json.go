package wire

import (
	"encoding/base64"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// JSON renders the tree for people to read: names where they are known,
// numbers ("#1000") where not, nothing left out.
func (m *Message) JSON() any {
	object := map[string]any{}
	for _, field := range m.Fields {
		name := field.Name()
		if field.Known() && field.Descriptor.IsMap() {
			entries, _ := object[name].(map[string]any)
			if entries == nil {
				entries = map[string]any{}
			}
			key, value := field.Message.mapEntry()
			entries[key] = value
			object[name] = entries
			continue
		}
		value := field.json()
		switch earlier, seen := object[name]; {
		case field.Known() && field.Descriptor.IsList():
			list, _ := earlier.([]any)
			if field.packed {
				list = append(list, value.([]any)...)
			} else {
				list = append(list, value)
			}
			object[name] = list
		case seen:
			object[name] = []any{earlier, value}
		default:
			object[name] = value
		}
	}
	return object
}

func (f *Field) json() any {
	switch {
	case f.Message != nil:
		return f.Message.JSON()
	case f.packed:
		list := []any{}
		for _, element := range f.Packed {
			list = append(list, f.Scalar(element))
		}
		return list
	case f.Type != protowire.VarintType && f.Type != protowire.Fixed32Type && f.Type != protowire.Fixed64Type:
		return printable(f.Bytes)
	default:
		return f.Scalar(f.Bits)
	}
}

func (m *Message) mapEntry() (key string, value any) {
	value = ""
	for _, field := range m.Fields {
		switch field.Number {
		case 1:
			key = fmt.Sprint(field.json())
		case 2:
			value = field.json()
		}
	}
	return key, value
}

func printable(data []byte) string {
	if utf8.Valid(data) {
		return string(data)
	}
	return "base64:" + base64.StdEncoding.EncodeToString(data)
}
