// Package wire reads protobuf messages into a tree that keeps every field the
// bytes hold, known or not, and writes the tree back.
//
// A comparison of whole replies must see fields that are newer than the
// vendored API, so nothing here goes through generated types: descriptors give
// names, the bytes give the content.
package wire

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Message is one decoded message. Fields keep their order on the wire.
type Message struct {
	// Descriptor is nil for a message of an unknown type.
	Descriptor protoreflect.MessageDescriptor
	Fields     []*Field
}

// Field is one occurrence of a field on the wire. Which of the values is set
// follows from the wire type and, for length-delimited ones, the descriptor.
type Field struct {
	Number protowire.Number
	Type   protowire.Type
	// Descriptor is nil for an unknown field, also for a known number that
	// arrived with a wire type its declaration does not allow.
	Descriptor protoreflect.FieldDescriptor
	// Bits holds varint, fixed32 and fixed64 values.
	Bits uint64
	// Bytes holds strings, bytes, unknown length-delimited fields and groups.
	Bytes []byte
	// Message holds embedded messages, map entries included.
	Message *Message
	// Packed holds the elements of a packed repeated field.
	Packed []uint64
	packed bool
}

// Decode reads one message. Unknown content never fails; cut or broken
// encoding does.
func Decode(descriptor protoreflect.MessageDescriptor, data []byte) (*Message, error) {
	message := &Message{Descriptor: descriptor}
	for len(data) > 0 {
		number, wireType, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil, fmt.Errorf("tag: %w", protowire.ParseError(n))
		}
		data = data[n:]
		field := &Field{Number: number, Type: wireType}
		if descriptor != nil {
			field.Descriptor = descriptor.Fields().ByNumber(number)
		}
		n, err := field.decodeValue(data)
		if err != nil {
			return nil, fmt.Errorf("field %d: %w", number, err)
		}
		data = data[n:]
		message.Fields = append(message.Fields, field)
	}
	return message, nil
}

// Encode writes the tree back. What Decode read from minimal varints comes
// out byte for byte.
func (m *Message) Encode() []byte {
	var out []byte
	for _, field := range m.Fields {
		out = protowire.AppendTag(out, field.Number, field.Type)
		out = field.appendValue(out)
	}
	return out
}

// Known tells whether the field's declaration is known and fits its encoding.
func (f *Field) Known() bool { return f.Descriptor != nil }

// IsPacked tells whether the field is a packed list.
func (f *Field) IsPacked() bool { return f.packed }

// Name is the declared name, or the number of an unknown field.
func (f *Field) Name() string {
	if f.Known() {
		return string(f.Descriptor.Name())
	}
	return fmt.Sprintf("#%d", f.Number)
}

// Scalar renders Bits as the declared type has it.
func (f *Field) Scalar(bits uint64) string {
	if !f.Known() {
		return fmt.Sprintf("%d", bits)
	}
	switch f.Descriptor.Kind() {
	case protoreflect.BoolKind:
		return fmt.Sprintf("%t", bits != 0)
	case protoreflect.EnumKind:
		value := f.Descriptor.Enum().Values().ByNumber(protoreflect.EnumNumber(int32(bits)))
		if value == nil {
			return fmt.Sprintf("%d", int32(bits))
		}
		return string(value.Name())
	case protoreflect.DoubleKind:
		return fmt.Sprintf("%g", math.Float64frombits(bits))
	case protoreflect.FloatKind:
		return fmt.Sprintf("%g", math.Float32frombits(uint32(bits)))
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return fmt.Sprintf("%d", protowire.DecodeZigZag(bits))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return fmt.Sprintf("%d", bits)
	default:
		return fmt.Sprintf("%d", int64(bits))
	}
}

func (f *Field) decodeValue(data []byte) (int, error) {
	switch f.Type {
	case protowire.VarintType:
		value, n := protowire.ConsumeVarint(data)
		f.Bits = value
		f.forgetUnless(varintKinds)
		return n, protowire.ParseError(n)
	case protowire.Fixed32Type:
		value, n := protowire.ConsumeFixed32(data)
		f.Bits = uint64(value)
		f.forgetUnless(fixed32Kinds)
		return n, protowire.ParseError(n)
	case protowire.Fixed64Type:
		value, n := protowire.ConsumeFixed64(data)
		f.Bits = value
		f.forgetUnless(fixed64Kinds)
		return n, protowire.ParseError(n)
	case protowire.BytesType:
		value, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return n, protowire.ParseError(n)
		}
		f.decodeDelimited(value)
		return n, nil
	default:
		n := protowire.ConsumeFieldValue(f.Number, f.Type, data)
		if n < 0 {
			return n, protowire.ParseError(n)
		}
		f.Descriptor = nil
		f.Bytes = append([]byte(nil), data[:n]...)
		return n, nil
	}
}

func (f *Field) decodeDelimited(value []byte) {
	f.Bytes = append([]byte(nil), value...)
	if f.Descriptor == nil {
		return
	}
	switch kind := f.Descriptor.Kind(); {
	case kind == protoreflect.MessageKind:
		message, err := Decode(f.Descriptor.Message(), value)
		if err != nil {
			f.Descriptor = nil
			return
		}
		f.Message, f.Bytes = message, nil
	case kind == protoreflect.StringKind || kind == protoreflect.BytesKind:
	case f.Descriptor.IsList() && varintKinds[kind]:
		packed, ok := unpackVarints(value)
		if !ok {
			f.Descriptor = nil
			return
		}
		f.Packed, f.Bytes, f.packed = packed, nil, true
	default:
		f.Descriptor = nil
	}
}

func (f *Field) appendValue(out []byte) []byte {
	switch {
	case f.Type == protowire.VarintType:
		return protowire.AppendVarint(out, f.Bits)
	case f.Type == protowire.Fixed32Type:
		return protowire.AppendFixed32(out, uint32(f.Bits))
	case f.Type == protowire.Fixed64Type:
		return protowire.AppendFixed64(out, f.Bits)
	case f.Message != nil:
		return protowire.AppendBytes(out, f.Message.Encode())
	case f.packed:
		var elements []byte
		for _, element := range f.Packed {
			elements = protowire.AppendVarint(elements, element)
		}
		return protowire.AppendBytes(out, elements)
	case f.Type == protowire.BytesType:
		return protowire.AppendBytes(out, f.Bytes)
	default:
		return append(out, f.Bytes...)
	}
}

func (f *Field) forgetUnless(kinds map[protoreflect.Kind]bool) {
	if f.Descriptor != nil && !kinds[f.Descriptor.Kind()] {
		f.Descriptor = nil
	}
}

func unpackVarints(data []byte) ([]uint64, bool) {
	elements := []uint64{}
	for len(data) > 0 {
		element, n := protowire.ConsumeVarint(data)
		if n < 0 {
			return nil, false
		}
		elements = append(elements, element)
		data = data[n:]
	}
	return elements, true
}

var (
	varintKinds = map[protoreflect.Kind]bool{
		protoreflect.BoolKind: true, protoreflect.EnumKind: true,
		protoreflect.Int32Kind: true, protoreflect.Int64Kind: true,
		protoreflect.Uint32Kind: true, protoreflect.Uint64Kind: true,
		protoreflect.Sint32Kind: true, protoreflect.Sint64Kind: true,
	}
	fixed32Kinds = map[protoreflect.Kind]bool{
		protoreflect.Fixed32Kind: true, protoreflect.Sfixed32Kind: true, protoreflect.FloatKind: true,
	}
	fixed64Kinds = map[protoreflect.Kind]bool{
		protoreflect.Fixed64Kind: true, protoreflect.Sfixed64Kind: true, protoreflect.DoubleKind: true,
	}
)
