package suite

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runLabel marks every pod of the suite, so that leftovers are found.
const runLabel = "conformance.test/run"

const namespace = "conformance"

// Full names of the methods that most scenarios use.
const (
	methodRunPod          = runtime.RuntimeService_RunPodSandbox_FullMethodName
	methodStopPod         = runtime.RuntimeService_StopPodSandbox_FullMethodName
	methodRemovePod       = runtime.RuntimeService_RemovePodSandbox_FullMethodName
	methodPodStatus       = runtime.RuntimeService_PodSandboxStatus_FullMethodName
	methodListPods        = runtime.RuntimeService_ListPodSandbox_FullMethodName
	methodCreate          = runtime.RuntimeService_CreateContainer_FullMethodName
	methodStart           = runtime.RuntimeService_StartContainer_FullMethodName
	methodStop            = runtime.RuntimeService_StopContainer_FullMethodName
	methodRemove          = runtime.RuntimeService_RemoveContainer_FullMethodName
	methodContainerStatus = runtime.RuntimeService_ContainerStatus_FullMethodName
	methodListContainers  = runtime.RuntimeService_ListContainers_FullMethodName
	methodUpdate          = runtime.RuntimeService_UpdateContainerResources_FullMethodName
	methodExecSync        = runtime.RuntimeService_ExecSync_FullMethodName
)

// The tiers of kubepods below which a kubelet puts pods.
const (
	tierGuaranteed = ""
	tierBurstable  = "burstable"
	tierBestEffort = "besteffort"
)

// Pod describes a pod of a scenario.
type Pod struct {
	Name        string
	Tier        string
	Labels      map[string]string
	Annotations map[string]string

	id     string
	config *runtime.PodSandboxConfig
}

// Container describes a container of a pod.
type Container struct {
	Name        string
	Command     []string
	Resources   *runtime.LinuxContainerResources
	Envs        []*runtime.KeyValue
	Annotations map[string]string
	// Stdin keeps standard input open, for attach.
	Stdin bool
	// Image is another one than the run's own.
	Image string

	pod *Pod
	id  string
}

// config builds the pod's configuration and its cgroup. The uid is a function
// of scenario and name, so that two runs send the same bytes.
func (s *Scenario) podConfig(pod *Pod) *runtime.PodSandboxConfig {
	uid := stableUID(s.recorded.Name, pod.Name)
	parent, err := s.suite.cgroups.Pod(filepath.Join(pod.Tier, "pod"+uid))
	if err != nil {
		panic(fmt.Sprintf("cgroup of pod %s: %v", pod.Name, err))
	}
	labels := map[string]string{
		runLabel:                      "true",
		"conformance.test/scenario":   s.recorded.Name,
		"io.kubernetes.pod.name":      pod.Name,
		"io.kubernetes.pod.namespace": namespace,
		"io.kubernetes.pod.uid":       uid,
	}
	maps.Copy(labels, pod.Labels)
	pod.config = &runtime.PodSandboxConfig{
		Metadata:     &runtime.PodSandboxMetadata{Name: pod.Name, Uid: uid, Namespace: namespace, Attempt: 1},
		LogDirectory: filepath.Join(s.logs, pod.Name),
		Labels:       labels,
		Annotations:  pod.Annotations,
		Linux: &runtime.LinuxPodSandboxConfig{
			CgroupParent: parent,
			SecurityContext: &runtime.LinuxSandboxSecurityContext{
				NamespaceOptions: hostNetwork(),
			},
		},
	}
	return pod.config
}

// RunPod starts a pod; the step is required to succeed.
func (s *Scenario) RunPod(step string, pod *Pod) *Pod {
	reply := s.Call(step, methodRunPod, &runtime.RunPodSandboxRequest{Config: s.podConfig(pod)}, Required())
	answer := &runtime.RunPodSandboxResponse{}
	into(reply, answer)
	pod.id = answer.PodSandboxId
	return pod
}

func (s *Scenario) containerConfig(container *Container) *runtime.ContainerConfig {
	pod := container.pod
	command := container.Command
	if command == nil {
		command = willing("while :; do /bin/busybox sleep 3600 & wait $!; done")
	}
	image := container.Image
	if image == "" {
		image = s.suite.config.Image
	}
	return &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: container.Name, Attempt: 0},
		Image:    &runtime.ImageSpec{Image: image, UserSpecifiedImage: image},
		Command:  command,
		Envs:     container.Envs,
		Labels: map[string]string{
			"io.kubernetes.container.name": container.Name,
			"io.kubernetes.pod.name":       pod.Name,
			"io.kubernetes.pod.namespace":  namespace,
			"io.kubernetes.pod.uid":        pod.config.GetMetadata().GetUid(),
		},
		Annotations: container.Annotations,
		LogPath:     container.Name + ".log",
		Stdin:       container.Stdin,
		Linux: &runtime.LinuxContainerConfig{
			Resources: container.Resources,
			SecurityContext: &runtime.LinuxContainerSecurityContext{
				NamespaceOptions: hostNetwork(),
			},
		},
	}
}

func (s *Scenario) createRequest(pod *Pod, container *Container) *runtime.CreateContainerRequest {
	container.pod = pod
	return &runtime.CreateContainerRequest{
		PodSandboxId: pod.id, Config: s.containerConfig(container), SandboxConfig: pod.config,
	}
}

// Create creates a container; the step is required to succeed.
func (s *Scenario) Create(step string, pod *Pod, container *Container) *Container {
	reply := s.Call(step, methodCreate, s.createRequest(pod, container), Required())
	container.created(reply)
	return container
}

func (c *Container) created(reply *Reply) {
	answer := &runtime.CreateContainerResponse{}
	into(reply, answer)
	c.id = answer.ContainerId
}

// Start starts a container; the step is required to succeed.
func (s *Scenario) Start(step string, container *Container) {
	s.Call(step, methodStart, &runtime.StartContainerRequest{ContainerId: container.id}, Required())
}

// Running makes a pod with one running container, in steps of one prefix.
func (s *Scenario) Running(prefix string, pod *Pod, container *Container) *Container {
	s.RunPod(prefix+"-run", pod)
	s.Create(prefix+"-create", pod, container)
	s.Start(prefix+"-start", container)
	return container
}

// Stop stops a container with a grace period in s.
func (s *Scenario) Stop(step string, container *Container, graceSeconds int64) {
	s.Call(step, methodStop, &runtime.StopContainerRequest{ContainerId: container.id, Timeout: graceSeconds})
}

// Remove removes a container.
func (s *Scenario) Remove(step string, container *Container) {
	s.Call(step, methodRemove, &runtime.RemoveContainerRequest{ContainerId: container.id})
}

// StopPod stops a pod.
func (s *Scenario) StopPod(step string, pod *Pod) {
	s.Call(step, methodStopPod, &runtime.StopPodSandboxRequest{PodSandboxId: pod.id})
	// containerd now and then answers before its books say that the pod is
	// stopped, and what is asked next then depends on who is first. A list is
	// made from these books; a status looks at the sandbox itself and is ahead.
	stopped := runtime.PodSandboxState_SANDBOX_NOTREADY.String()
	s.await(func() string {
		answer := &runtime.ListPodSandboxResponse{}
		request := &runtime.ListPodSandboxRequest{Filter: &runtime.PodSandboxFilter{Id: pod.id}}
		if s.suite.quietly(s.ctx, methodListPods, request, answer) != nil || len(answer.Items) == 0 {
			return stopped
		}
		return answer.Items[0].GetState().String()
	}, stopped)
}

// RemovePod removes a pod.
func (s *Scenario) RemovePod(step string, pod *Pod) {
	s.Call(step, methodRemovePod, &runtime.RemovePodSandboxRequest{PodSandboxId: pod.id})
}

// Status asks for a container's status, plain.
func (s *Scenario) Status(step string, container *Container) {
	s.Call(step, methodContainerStatus, &runtime.ContainerStatusRequest{ContainerId: container.id})
}

// VerboseStatus asks for a container's status with everything the runtime
// would tell for debugging.
func (s *Scenario) VerboseStatus(step string, container *Container) {
	s.Call(step, methodContainerStatus, &runtime.ContainerStatusRequest{ContainerId: container.id, Verbose: true})
}

// AwaitExit asks for the status until the container has exited.
func (s *Scenario) AwaitExit(step string, container *Container) {
	request := &runtime.ContainerStatusRequest{ContainerId: container.id}
	s.Call(step, methodContainerStatus, request, Until(callTimeout, func(reply *Reply) bool {
		answer := &runtime.ContainerStatusResponse{}
		into(reply, answer)
		return !reply.OK() || answer.Status.GetState() == runtime.ContainerState_CONTAINER_EXITED
	}))
}

// Exec runs a shell script in a container. The timeout is in s, 0 for none.
func (s *Scenario) Exec(step string, container *Container, script string, timeoutSeconds int64, options ...Option) *runtime.ExecSyncResponse {
	reply := s.Call(step, methodExecSync, &runtime.ExecSyncRequest{
		ContainerId: container.id, Cmd: shell(script), Timeout: timeoutSeconds,
	}, options...)
	answer := &runtime.ExecSyncResponse{}
	into(reply, answer)
	return answer
}

// Peek runs a shell script in a container without recording the call.
func (s *Scenario) Peek(container *Container, script string) string {
	answer := &runtime.ExecSyncResponse{}
	request := &runtime.ExecSyncRequest{ContainerId: container.id, Cmd: shell(script)}
	if err := s.suite.quietly(s.ctx, methodExecSync, request, answer); err != nil {
		return err.Error()
	}
	return string(answer.Stdout)
}

func shell(script string) []string { return []string{"/bin/busybox", "sh", "-c", script} }

// willing is a script that ends when it is asked to, where a shell that is the
// first process ends for nothing less than SIGKILL: CRI-O waits half a minute
// for such a one, whatever grace it is told.
func willing(script string) []string { return shell("trap 'exit 0' TERM; " + script) }

// awaitWilling waits until a container that runs a willing script ends when it
// is asked to. Just after its start it may be the runtime's program yet, or a
// shell without its trap, and what its end is called depends on who is first.
func (s *Scenario) awaitWilling(step string, container *Container) {
	// Bit 14 of the signals that the first process catches is SIGTERM.
	const catches = "[ $(/bin/busybox readlink /proc/1/exe) = /bin/busybox ] && " +
		"/bin/busybox grep -q '^SigCgt:.*[4-7c-f]...$' /proc/1/status && echo willing"
	s.Observe(step, s.await(func() string { return strings.TrimSpace(s.Peek(container, catches)) }, "willing"))
}

// briefly is a script that ends by itself, but not before the runtime has
// noted that it started.
func briefly(script string) []string { return shell("/bin/busybox sleep 0.2; " + script) }

func hostNetwork() *runtime.NamespaceOption {
	return &runtime.NamespaceOption{
		Network: runtime.NamespaceMode_NODE,
		Pid:     runtime.NamespaceMode_CONTAINER,
		Ipc:     runtime.NamespaceMode_POD,
	}
}

// into decodes a reply where there is one; a reply that is not what it should
// be leaves the message empty, and shows in the comparison.
func into(reply *Reply, message proto.Message) {
	if reply.OK() && len(reply.Messages) > 0 {
		_ = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(reply.Bytes(), message)
	}
}
