package canon

import (
	"koord/conformance/internal/wire"
)

// podNameLabel is the label by which a kubelet names the pod on containers.
const podNameLabel = "io.kubernetes.pod.name"

// objectOf names the pod or container that a message describes, "" for any
// other message.
func objectOf(message *wire.Message) string {
	if message.Descriptor == nil {
		return ""
	}
	switch message.Descriptor.FullName() {
	case "runtime.v1.Container", "runtime.v1.ContainerStatus":
		return containerName(message)
	case "runtime.v1.ContainerStats":
		if attributes := child(message, "attributes"); attributes != nil {
			return containerName(attributes)
		}
	case "runtime.v1.PodSandbox", "runtime.v1.PodSandboxStatus":
		return metadataName(message)
	case "runtime.v1.PodSandboxStats":
		if attributes := child(message, "attributes"); attributes != nil {
			return metadataName(attributes)
		}
	case "runtime.v1.ContainerStatusResponse", "runtime.v1.PodSandboxStatusResponse":
		if status := child(message, "status"); status != nil {
			return objectOf(status)
		}
	}
	return ""
}

// labelOf names an element of an unordered list.
func labelOf(message *wire.Message, mask *mask) string {
	if object := objectOf(message); object != "" {
		return object
	}
	for _, name := range []string{"name", "id", "pod_sandbox_id", "container_id"} {
		if value := text(message, name); value != "" {
			peek := *mask
			peek.peek = true
			return peek.text(value)
		}
	}
	return "?"
}

func containerName(message *wire.Message) string {
	pod := ""
	for _, field := range message.Fields {
		if field.Name() == "labels" && field.Message != nil && mapKey(field) == podNameLabel {
			pod = text(field.Message, "value")
		}
	}
	return pod + "/" + metadataName(message)
}

func metadataName(message *wire.Message) string {
	if metadata := child(message, "metadata"); metadata != nil {
		return text(metadata, "name")
	}
	return ""
}

func child(message *wire.Message, name string) *wire.Message {
	for _, field := range message.Fields {
		if field.Name() == name && field.Message != nil {
			return field.Message
		}
	}
	return nil
}

func text(message *wire.Message, name string) string {
	for _, field := range message.Fields {
		if field.Name() == name {
			return string(field.Bytes)
		}
	}
	return ""
}
