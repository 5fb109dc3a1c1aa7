package suite

import (
	"bytes"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/wire"
)

const unknownID = "0000000000000000000000000000000000000000000000000000000000000bad"

func unknownIDs(s *Scenario) {
	for _, call := range []struct {
		step, method string
		request      proto.Message
	}{
		{"stop-pod", methodStopPod, &runtime.StopPodSandboxRequest{PodSandboxId: unknownID}},
		{"remove-pod", methodRemovePod, &runtime.RemovePodSandboxRequest{PodSandboxId: unknownID}},
		{"pod-status", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: unknownID}},
		{"pod-status-verbose", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: unknownID, Verbose: true}},
		{"create", methodCreate, &runtime.CreateContainerRequest{
			PodSandboxId: unknownID,
			Config: &runtime.ContainerConfig{
				Metadata: &runtime.ContainerMetadata{Name: "a"}, Image: &runtime.ImageSpec{Image: s.suite.config.Image},
			},
			SandboxConfig: &runtime.PodSandboxConfig{Metadata: &runtime.PodSandboxMetadata{Name: "a"}},
		}},
		{"start", methodStart, &runtime.StartContainerRequest{ContainerId: unknownID}},
		{"stop", methodStop, &runtime.StopContainerRequest{ContainerId: unknownID}},
		{"remove", methodRemove, &runtime.RemoveContainerRequest{ContainerId: unknownID}},
		{"status", methodContainerStatus, &runtime.ContainerStatusRequest{ContainerId: unknownID}},
		{"update", methodUpdate, &runtime.UpdateContainerResourcesRequest{
			ContainerId: unknownID, Linux: &runtime.LinuxContainerResources{CpuShares: 10},
		}},
		{"update-pod", runtime.RuntimeService_UpdatePodSandboxResources_FullMethodName,
			&runtime.UpdatePodSandboxResourcesRequest{PodSandboxId: unknownID}},
		{"reopen-log", runtime.RuntimeService_ReopenContainerLog_FullMethodName,
			&runtime.ReopenContainerLogRequest{ContainerId: unknownID}},
		{"exec-sync", methodExecSync, &runtime.ExecSyncRequest{ContainerId: unknownID, Cmd: shell("exit 0")}},
		{"exec", runtime.RuntimeService_Exec_FullMethodName,
			&runtime.ExecRequest{ContainerId: unknownID, Cmd: shell("exit 0"), Stdout: true}},
		{"attach", runtime.RuntimeService_Attach_FullMethodName, &runtime.AttachRequest{ContainerId: unknownID, Stdout: true}},
		{"port-forward", runtime.RuntimeService_PortForward_FullMethodName, &runtime.PortForwardRequest{PodSandboxId: unknownID}},
		{"stats", runtime.RuntimeService_ContainerStats_FullMethodName, &runtime.ContainerStatsRequest{ContainerId: unknownID}},
		{"pod-stats", runtime.RuntimeService_PodSandboxStats_FullMethodName, &runtime.PodSandboxStatsRequest{PodSandboxId: unknownID}},
		{"list-stats", runtime.RuntimeService_ListContainerStats_FullMethodName,
			&runtime.ListContainerStatsRequest{Filter: &runtime.ContainerStatsFilter{Id: unknownID}}},
		{"checkpoint", runtime.RuntimeService_CheckpointContainer_FullMethodName,
			&runtime.CheckpointContainerRequest{ContainerId: unknownID, Location: s.logs + "/checkpoint.tar"}},
	} {
		s.Call(call.step, call.method, call.request)
	}
}

// emptyRequests sends nothing at all to every method of the API.
func emptyRequests(s *Scenario) {
	for _, method := range wire.UnaryMethods() {
		// containerd takes an empty name for a prefix of the only image there
		// is and removes it. Metrics and the use of the image file system are
		// measurements, which the stats scenario waits for.
		if method == methodRemoveImage ||
			method == methodImageFs || strings.Contains(method, "Metrics") {
			continue
		}
		s.CallRaw(method[strings.LastIndex(method, "/")+1:], method, nil)
	}
	for _, method := range wire.StreamMethods() {
		if method == runtime.RuntimeService_GetContainerEvents_FullMethodName {
			continue
		}
		s.Stream(method[strings.LastIndex(method, "/")+1:], method, &runtime.GetEventsRequest{}, nil)
	}
}

// invalidRequests sends what no client should.
func invalidRequests(s *Scenario) {
	pod := s.RunPod("run", &Pod{Name: "pod"})
	garbage := []byte{0x0a, 0x7f, 0x01, 0x02, 0xff}
	s.CallRaw("garbage-create", methodCreate, garbage)
	s.CallRaw("garbage-run", methodRunPod, garbage)
	s.CallRaw("garbage-version", runtime.RuntimeService_Version_FullMethodName, garbage)
	s.CallRaw("wrong-wire-type", methodStart, []byte{0x08, 0x01})
	s.CallRaw("unknown-method", "/runtime.v1.RuntimeService/NoSuchMethod", []byte{})
	s.CallRaw("unknown-service", "/no.such.Service/Method", []byte{0x0a, 0x01, 'x'})
	s.CallRaw("next-version", "/runtime.v2.RuntimeService/CreateContainer", []byte{})
	s.CallRaw("method-without-service", "/CreateContainer", []byte{})
	s.Call("compressed-version", runtime.RuntimeService_Version_FullMethodName, &runtime.VersionRequest{}, Compressed())
	compressed := &Container{Name: "compressed"}
	compressed.created(s.Call("compressed-create", methodCreate, s.createRequest(pod, compressed), Compressed()))
	s.Status("compressed-status", compressed)

	config := func(change func(*runtime.ContainerConfig)) *runtime.CreateContainerRequest {
		request := s.createRequest(pod, &Container{Name: "invalid"})
		change(request.Config)
		return request
	}
	s.Call("unknown-image", methodCreate, config(func(c *runtime.ContainerConfig) { c.Image.Image = "no.such/image:1" }))
	s.Call("no-metadata", methodCreate, config(func(c *runtime.ContainerConfig) { c.Metadata = nil }))
	s.Call("no-image", methodCreate, config(func(c *runtime.ContainerConfig) { c.Image = nil }))
	s.Call("relative-mount", methodCreate, config(func(c *runtime.ContainerConfig) {
		c.Mounts = []*runtime.Mount{{ContainerPath: "relative", HostPath: "/no/such/place"}}
	}))
	s.Call("unknown-device", methodCreate, config(func(c *runtime.ContainerConfig) {
		c.Devices = []*runtime.Device{{ContainerPath: "/dev/x", HostPath: "/dev/no-such-device", Permissions: "rwm"}}
	}))
	s.Call("unknown-capability", methodCreate, config(func(c *runtime.ContainerConfig) {
		c.Linux.SecurityContext.Capabilities = &runtime.Capability{AddCapabilities: []string{"NO_SUCH"}}
	}))
	s.Call("pod-without-metadata", methodRunPod, &runtime.RunPodSandboxRequest{Config: &runtime.PodSandboxConfig{}})
	handler := s.podConfig(&Pod{Name: "handler"})
	s.Call("unknown-handler", methodRunPod, &runtime.RunPodSandboxRequest{Config: handler, RuntimeHandler: "no-such-handler"})

	broken := &Container{Name: "broken", Command: []string{"/no/such/command"}}
	broken.created(s.Call("create-unknown-command", methodCreate, s.createRequest(pod, broken)))
	s.Call("start-unknown-command", methodStart, &runtime.StartContainerRequest{ContainerId: broken.id})
	s.Status("status-unknown-command", broken)
	s.CallRaw("non-utf8-id", methodStart, append([]byte{0x0a, 0x03}, 0xff, 0xfe, 'x'))
	s.CallRaw("oversized-create", methodCreate, oversized(17<<20))
	s.CallRaw("oversized-version", runtime.RuntimeService_Version_FullMethodName, oversized(17<<20))
	s.Call("after-oversized", runtime.RuntimeService_Version_FullMethodName, &runtime.VersionRequest{}, Required())
	s.Call("checkpoint", runtime.RuntimeService_CheckpointContainer_FullMethodName,
		&runtime.CheckpointContainerRequest{ContainerId: broken.id, Location: s.logs + "/checkpoint.tar"})
}

// oversized is a message of an unknown field with so many bytes of content.
func oversized(size int) []byte {
	tag := protowire.AppendTag(nil, 2000, protowire.BytesType)
	return protowire.AppendBytes(tag, bytes.Repeat([]byte{'x'}, size))
}
