package wire

import (
	"bytes"
	"encoding/hex"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func decode(t *testing.T, method string, data []byte) *Message {
	t.Helper()
	_, reply := Method(method)
	if reply == nil {
		t.Fatalf("no reply type for %s", method)
	}
	message, err := Decode(reply, data)
	if err != nil {
		t.Fatal(err)
	}
	return message
}

func TestEveryByteComesBack(t *testing.T) {
	known, err := proto.Marshal(&runtime.ContainerStatusResponse{
		Status: &runtime.ContainerStatus{
			Id: "abc", CreatedAt: -1, State: runtime.ContainerState_CONTAINER_EXITED,
			Labels: map[string]string{"a": "b"},
			User:   &runtime.ContainerUser{Linux: &runtime.LinuxContainerUser{SupplementalGroups: []int64{1, 300}}},
		},
		Info: map[string]string{"k": "{}"},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Field 1000 as varint, 1001 as fixed32, 1002 as fixed64, 1003 as bytes: all unknown.
	unknown, _ := hex.DecodeString("c03e05" + "cd3e01020304" + "d13e0102030405060708" + "da3e02ff00")
	data := append(known, unknown...)
	message := decode(t, "/runtime.v1.RuntimeService/ContainerStatus", data)
	if got := message.Encode(); !bytes.Equal(got, data) {
		t.Fatalf("encoded\n%x\nwanted\n%x", got, data)
	}
	if got := message.JSON().(map[string]any)["#1000"]; got != "5" {
		t.Fatalf("unknown varint rendered as %v", got)
	}
}

func TestAKnownNumberWithAForeignWireTypeIsUnknown(t *testing.T) {
	// Field 1 (version, a string) sent as varint 7.
	message := decode(t, "/runtime.v1.RuntimeService/Version", []byte{0x08, 0x07})
	if message.Fields[0].Known() {
		t.Fatal("a varint cannot be the string field")
	}
	if name := message.Fields[0].Name(); name != "#1" {
		t.Fatalf("named %q", name)
	}
}

func TestACutMessageIsRefused(t *testing.T) {
	if _, err := Decode(nil, []byte{0x0a, 0x05, 'a'}); err == nil {
		t.Fatal("5 bytes were promised and 1 came")
	}
}

func TestOldVersionsAreReadWithTheTypesOfV1(t *testing.T) {
	_, reply := Method("/runtime.v1alpha2.RuntimeService/Version")
	if reply == nil || reply.FullName() != "runtime.v1.VersionResponse" {
		t.Fatalf("got %v", reply)
	}
	if _, reply := Method("/no.Such/Method"); reply != nil {
		t.Fatalf("got %v", reply)
	}
}
