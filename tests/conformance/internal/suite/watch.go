package suite

import (
	"context"
	"fmt"
	"os/exec"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/transcript"
)

const (
	methodEvents  = runtime.RuntimeService_GetContainerEvents_FullMethodName
	methodImages  = runtime.ImageService_ListImages_FullMethodName
	methodVersion = runtime.RuntimeService_Version_FullMethodName
)

// eventsTimeout bounds the stream of events; a runtime that does not have it
// answers at once.
const eventsTimeout = time.Minute

const markerName = "marker"

// events follows the stream through one pod's life. A runtime may first send
// what happened before anybody listened: everything up to the end of a marker
// pod is taken off the recorded stream.
func events(s *Scenario) {
	heard := make(chan struct{})
	subscribed := make(chan struct{})
	var reply *Reply
	marker := &Pod{Name: markerName}
	listener := newCall(methodEvents, nil, []Option{Within(eventsTimeout)})
	listener.stream = true
	markerSeen := false
	from := 0
	var received atomic.Int64
	// An event shows all containers of its pod as they are when it is made, which
	// is a moment after what it tells of: the next step waits until all is quiet.
	quiet := func() {
		for last := int64(-1); last != received.Load(); time.Sleep(200 * time.Millisecond) {
			last = received.Load()
		}
	}
	listener.enough = func(messages [][]byte) bool {
		received.Store(int64(len(messages)))
		last := messages[len(messages)-1]
		event := eventOf(last)
		switch {
		case !markerSeen && EndsMarker(last):
			markerSeen, from = true, len(messages)
			close(subscribed)
		case markerSeen && event.PodSandboxStatus.GetMetadata().GetName() == "pod":
			return event.ContainerEventType == runtime.ContainerEventType_CONTAINER_STOPPED_EVENT &&
				event.ContainerId == event.PodSandboxStatus.GetId()
		}
		return false
	}
	go func() {
		reply = s.perform("events", listener)
		close(heard)
	}()
	// The stream has no way to say that it is established; the first marker
	// may be missed, the next is not.
	s.markUntil(marker, subscribed, heard)
	container := s.Running("pod", &Pod{Name: "pod"}, &Container{Name: "main", Command: briefly("exit 4")})
	s.AwaitExit("exited", container)
	quiet()
	second := s.Create("create-second", container.pod, &Container{Name: "second"})
	s.Start("start-second", second)
	quiet()
	s.Stop("stop-second", second, 10)
	quiet()
	s.Remove("remove-main", container)
	quiet()
	s.Remove("remove-second", second)
	quiet()
	s.StopPod("stop-pod", container.pod)
	<-heard
	reply.Messages = reply.Messages[min(from, len(reply.Messages)):]
	s.add(listener.record("events", reply))
	s.RemovePod("remove-pod", container.pod)
}

// EndsMarker tells whether a message of the stream of events is the last before
// those that are recorded.
func EndsMarker(message []byte) bool {
	event := eventOf(message)
	return event.PodSandboxStatus.GetMetadata().GetName() == markerName &&
		event.ContainerEventType == runtime.ContainerEventType_CONTAINER_STARTED_EVENT
}

func eventOf(message []byte) *runtime.ContainerEventResponse {
	event := &runtime.ContainerEventResponse{}
	_ = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(message, event)
	return event
}

// markUntil runs marker pods until one was seen on the stream or the stream
// has ended. They are not recorded.
func (s *Scenario) markUntil(marker *Pod, seen, ended <-chan struct{}) {
	config := s.podConfig(marker)
	for attempt := uint32(1); attempt < 20; attempt++ {
		config.Metadata.Attempt = attempt
		answer := &runtime.RunPodSandboxResponse{}
		if s.suite.quietly(s.ctx, methodRunPod, &runtime.RunPodSandboxRequest{Config: config}, answer) != nil {
			return
		}
		select {
		case <-seen:
			return
		case <-ended:
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func images(s *Scenario) {
	image := &runtime.ImageSpec{Image: s.suite.config.Image}
	unknown := &runtime.ImageSpec{Image: "no.such.registry.invalid/no/such/image:1"}
	s.Call("list", methodImages, &runtime.ListImagesRequest{}, Required())
	s.Call("list-filtered", methodImages, &runtime.ListImagesRequest{Filter: &runtime.ImageFilter{Image: image}})
	s.Call("list-filtered-unknown", methodImages, &runtime.ListImagesRequest{Filter: &runtime.ImageFilter{Image: unknown}})
	status := func(step string, spec *runtime.ImageSpec, verbose bool) {
		s.Call(step, methodImageStatus, &runtime.ImageStatusRequest{Image: spec, Verbose: verbose})
	}
	status("status", image, false)
	status("status-verbose", image, true)
	status("status-unknown", unknown, false)
	status("status-malformed", &runtime.ImageSpec{Image: "Not A Name!"}, false)
	pull := func(step, name string) {
		s.Call(step, methodPull,
			&runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: name}}, Within(time.Minute))
	}
	// Port 1 of loopback refuses at once; no name has to be looked up.
	pull("pull-refused", "127.0.0.1:1/no/such:1")
	pull("pull-malformed", "Not A Name!")
	pull("pull-nothing", "")
	s.Call("remove-unknown", methodRemoveImage, &runtime.RemoveImageRequest{Image: unknown})
	s.Call("remove-malformed", methodRemoveImage,
		&runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: "Not A Name!"}})
	s.Stream("stream", runtime.ImageService_StreamImages_FullMethodName, &runtime.StreamImagesRequest{}, nil)
}

// restart restarts the runtime under running pods and looks at everything
// again.
func restart(s *Scenario) {
	pod := &Pod{Name: "pod"}
	container := s.Running("pod", pod, &Container{Name: "main"})
	created := s.Create("create-created", pod, &Container{Name: "created"})
	exited := s.Create("create-exited", pod, &Container{Name: "exited", Command: briefly("exit 6")})
	s.Start("start-exited", exited)
	s.AwaitExit("exited", exited)
	look := func(when string) {
		s.Call(when+"-pods", methodListPods, &runtime.ListPodSandboxRequest{})
		s.Call(when+"-containers", methodListContainers, &runtime.ListContainersRequest{})
		s.Call(when+"-pod-status", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: pod.id})
		for _, container := range []*Container{container, created, exited} {
			s.Status(when+"-status-"+container.Name, container)
		}
		s.Exec(when+"-exec", container, "echo alive", 5)
	}
	look("before")
	s.restartRuntime("restart")
	s.Call("version", methodVersion, &runtime.VersionRequest{}, Until(callTimeout, (*Reply).OK), Required())
	s.Call("status", runtime.RuntimeService_Status_FullMethodName, &runtime.StatusRequest{}, Until(callTimeout, (*Reply).OK), Required())
	look("after")
	s.Start("start-created", created)
	late := s.Create("create-late", pod, &Container{Name: "late"})
	s.Start("start-late", late)
	s.update("late", late, &runtime.LinuxContainerResources{CpuShares: 123})
	s.Stop("stop", container, 10)
	s.Status("status-stopped", container)
	s.StopPod("stop-pod", pod)
	s.RemovePod("remove-pod", pod)
	s.Call("list-after", methodListPods, &runtime.ListPodSandboxRequest{})
}

// restartRuntime runs the given command, which has to succeed.
func (s *Scenario) restartRuntime(step string) {
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	output, err := exec.CommandContext(ctx, "sh", "-c", s.suite.config.RestartCommand).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, output)
	}
	s.add(transcript.Step{Name: step, Required: true, Status: statusOf(err), EndedNS: time.Now().UnixNano()})
}
