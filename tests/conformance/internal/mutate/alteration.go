package mutate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"koord/conformance/internal/canon"
	"koord/conformance/internal/transcript"
	"koord/conformance/internal/wire"
)

// How says what is done to the place.
type How string

// Change gives another value of the same type; Blank the zero or empty value;
// Drop leaves the field out; Extend puts an unknown field into the message.
const (
	Change How = "change"
	Blank  How = "blank"
	Drop   How = "drop"
	Extend How = "extend"
)

// Alteration is one change of one reply.
type Alteration struct {
	Scenario string
	Step     string
	// Reply is the index of the message within the step.
	Reply int
	How   How
	// Field is the full name of the declaration, "" for unknown fields.
	Field  string
	Nature canon.Nature

	at locator
	// position picks the character of a string, or the element of a packed
	// list, that is changed: the last one where the value is a shorter one than
	// the recorded, as that of an element of a list which stands in for another.
	position int
	// token picks the value within JSON; -1 for none.
	token int
}

func (a Alteration) String() string {
	json := ""
	if a.token >= 0 {
		json = fmt.Sprintf(" (JSON value %d)", a.token)
	}
	return fmt.Sprintf("%s / %s: %s reply[%d].%s%s", a.Scenario, a.Step, a.How, a.Reply, a.at, json)
}

// Of lists the alterations of all replies of a step.
func Of(scenario string, step *transcript.Step) []Alteration {
	var list []Alteration
	_, descriptor := wire.Method(step.Method)
	for i, reply := range step.Replies {
		root, err := wire.Decode(descriptor, reply.Bytes)
		if err != nil {
			continue
		}
		base := Alteration{Scenario: scenario, Step: step.Name, Reply: i, token: -1}
		extend := base
		extend.How = Extend
		list = append(list, extend)
		parents := map[string]protoreflect.FieldDescriptor{}
		each(root, func(at locator, field *wire.Field) {
			parent := parents[at[:len(at)-1].String()]
			parents[at.String()] = field.Descriptor
			place := base
			place.at = at
			place.Nature = canon.NatureOf(parent, field.Descriptor)
			if field.Known() {
				place.Field = string(field.Descriptor.FullName())
			}
			list = append(list, place.variants(field)...)
		})
	}
	return list
}

// variants lists what can be done to one field.
func (a Alteration) variants(field *wire.Field) []Alteration {
	with := func(how How, position, token int) Alteration {
		a := a
		a.How, a.position, a.token = how, position, token
		return a
	}
	list := []Alteration{with(Drop, 0, -1)}
	switch {
	case field.Message != nil:
		return append(list, with(Extend, 0, -1))
	case field.IsPacked():
		for i := range field.Packed {
			list = append(list, with(Change, i, -1))
		}
		return list
	case field.Type != protowire.BytesType:
		list = append(list, with(Change, 0, -1))
		if field.Bits != 0 {
			list = append(list, with(Blank, 0, -1))
		}
		return list
	case isInfo(a.at) && json.Valid(field.Bytes):
		for token := range jsonValues(field.Bytes) {
			list = append(list, with(Change, 0, token), with(Blank, 0, token))
		}
		return list
	}
	if n := len(field.Bytes); n > 0 {
		list = append(list, with(Blank, 0, -1))
		positions := []int{0, n / 2, n - 1}
		for _, position := range slices.Compact(positions) {
			list = append(list, with(Change, position, -1))
		}
	} else {
		list = append(list, with(Change, 0, -1))
	}
	return list
}

// isInfo tells whether the field is a value of a verbose status.
func isInfo(at locator) bool {
	return len(at) >= 2 && at[len(at)-2].isMap && at[len(at)-2].name == "info" && at[len(at)-1].number == 2
}

// Apply alters the bytes of a reply.
func (a Alteration) Apply(method string, data []byte) ([]byte, error) {
	_, descriptor := wire.Method(method)
	root, err := wire.Decode(descriptor, data)
	if err != nil {
		return nil, err
	}
	if len(a.at) == 0 {
		root.Fields = append(root.Fields, unknownField())
		return root.Encode(), nil
	}
	message, field := a.at.find(root)
	if field == nil {
		return nil, fmt.Errorf("the reply has no %s", a.at)
	}
	switch {
	case a.How == Drop:
		message.Fields = slices.DeleteFunc(message.Fields, func(other *wire.Field) bool { return other == field })
	case a.How == Extend:
		field.Message.Fields = append(field.Message.Fields, unknownField())
	case a.token >= 0:
		err = a.applyToJSON(field)
	case a.How == Blank:
		field.Bits, field.Bytes = 0, nil
	case field.IsPacked():
		field.Packed = changeElement(field.Packed, a.position)
	case field.Type == protowire.BytesType:
		field.Bytes = changeByte(field.Bytes, a.position)
	case field.Known() && field.Descriptor.Kind() == protoreflect.BoolKind:
		field.Bits ^= 1
	default:
		field.Bits++
	}
	return root.Encode(), err
}

func (a Alteration) applyToJSON(field *wire.Field) error {
	values := jsonValues(field.Bytes)
	if a.token >= len(values) {
		return fmt.Errorf("the JSON of %s has only %d values", a.at, len(values))
	}
	from, to := values[a.token][0], values[a.token][1]
	altered := alteredJSON(string(field.Bytes[from:to]), a.How)
	field.Bytes = slices.Concat(field.Bytes[:from], []byte(altered), field.Bytes[to:])
	return nil
}

// alteredJSON gives another value of the same JSON type, or an empty one.
func alteredJSON(raw string, how How) string {
	switch {
	case how == Blank && raw == `""`, how == Blank && raw == "0", how == Blank && raw == "null":
		return "false"
	case how == Blank && strings.HasPrefix(raw, `"`):
		return `""`
	case how == Blank:
		return "null"
	case raw == "true":
		return "false"
	case raw == "false", raw == "null":
		return "true"
	case raw == `""`:
		return `"x"`
	case strings.HasPrefix(raw, `"`):
		// The last character of the text; never part of an escape, which a
		// change could break: then one is added instead.
		if strings.Contains(raw, `\`) {
			return raw[:len(raw)-1] + `x"`
		}
		inner := changeByte([]byte(raw[1:len(raw)-1]), len(raw)-3)
		return `"` + string(inner) + `"`
	default:
		return string(changeByte([]byte(raw), len(raw)-1))
	}
}

// jsonValues lists where the scalar values and keys stand in a JSON text.
func jsonValues(text []byte) [][2]int {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var values [][2]int
	last := 0
	for {
		token, err := decoder.Token()
		if err != nil {
			return values
		}
		end := int(decoder.InputOffset())
		if _, ok := token.(json.Delim); !ok {
			raw := bytes.TrimLeft(text[last:end], " \t\r\n:,")
			values = append(values, [2]int{end - len(raw), end})
		}
		last = end
	}
}

// changeByte replaces one character by its neighbour of the same sort, so that
// a hexadecimal id stays one; anything not a digit or letter has its last bit
// turned.
func changeByte(data []byte, position int) []byte {
	if len(data) == 0 {
		return []byte("x")
	}
	out := slices.Clone(data)
	switch at := &out[min(position, len(out)-1)]; {
	case *at == '9', *at == 'f':
		*at = '1'
	case *at >= '0' && *at < '9', *at >= 'a' && *at < 'f':
		*at++
	case *at == 'z', *at == 'Z':
		*at -= 2
	case *at > 'f' && *at < 'z', *at >= 'A' && *at < 'Z':
		*at++
	default:
		*at ^= 1
	}
	return out
}

// changeElement counts one element up, or puts one into an empty list.
func changeElement(list []uint64, position int) []uint64 {
	if len(list) == 0 {
		return []uint64{1}
	}
	out := slices.Clone(list)
	out[min(position, len(out)-1)]++
	return out
}

func unknownField() *wire.Field {
	return &wire.Field{Number: 19999, Type: protowire.VarintType, Bits: 1}
}
