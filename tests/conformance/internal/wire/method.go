package wire

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	// Registers the CRI descriptors that Method looks up.
	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Method finds the request and reply types of a full gRPC method name such as
// "/runtime.v1.RuntimeService/Version". `runtime.v1alpha2` is read with the
// types of v1, whose shape it shares. Unknown methods give nil types, with
// which every field decodes as unknown.
func Method(fullName string) (request, reply protoreflect.MessageDescriptor) {
	service, method, ok := strings.Cut(strings.TrimPrefix(fullName, "/"), "/")
	if !ok {
		return nil, nil
	}
	service = strings.Replace(service, "runtime.v1alpha2.", "runtime.v1.", 1)
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, nil
	}
	serviceDescriptor, ok := descriptor.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, nil
	}
	found := serviceDescriptor.Methods().ByName(protoreflect.Name(method))
	if found == nil {
		return nil, nil
	}
	return found.Input(), found.Output()
}

// UnaryMethods lists the full names of all unary methods of the CRI, in order
// of declaration.
func UnaryMethods() []string { return methods(false) }

// StreamMethods lists the full names of all server streams of the CRI.
func StreamMethods() []string { return methods(true) }

func methods(streaming bool) []string {
	var names []string
	for _, service := range []string{"runtime.v1.RuntimeService", "runtime.v1.ImageService"} {
		descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		if err != nil {
			panic("the CRI descriptors are linked into this program: " + err.Error())
		}
		list := descriptor.(protoreflect.ServiceDescriptor).Methods()
		for i := range list.Len() {
			if list.Get(i).IsStreamingServer() == streaming {
				names = append(names, "/"+service+"/"+string(list.Get(i).Name()))
			}
		}
	}
	return names
}
