package suite

import (
	"slices"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// definitions is the fixed list of scenarios, in the order they run.
var definitions = []definition{
	{"runtime-information", runtimeInformation},
	{"life-cycle", lifeCycle},
	{"wrong-order", wrongOrder},
	{"duplicate-names", duplicateNames},
	{"lists", lists},
	{"exec-sync", execSync},
	{"exec-sync-large", execSyncLarge},
	{"streaming", streaming},
	{"logs", logs},
	{"events", events},
	{"images", images},
	{"pulls", pulls},
	{"unknown-ids", unknownIDs},
	{"empty-requests", emptyRequests},
	{"invalid-requests", invalidRequests},
	{"deadline-and-cancel", deadlineAndCancel},
	{"updates", updates},
	{"payloads", payloads},
	{"qos-classes", qosClasses},
	{"v1alpha2", v1alpha2},
	{"parallel", parallel},
	{"stats", stats},
	{"restart", restart},
}

func runtimeInformation(s *Scenario) {
	s.Call("version", runtime.RuntimeService_Version_FullMethodName, &runtime.VersionRequest{Version: "0.1.0"}, Required())
	s.Call("version-of-another-kubelet", runtime.RuntimeService_Version_FullMethodName, &runtime.VersionRequest{Version: "v9"})
	// CRI-O looks after its network by a clock of its own.
	s.Call("status", runtime.RuntimeService_Status_FullMethodName, &runtime.StatusRequest{}, Required(), Until(callTimeout, func(reply *Reply) bool {
		answer := &runtime.StatusResponse{}
		into(reply, answer)
		return !slices.ContainsFunc(answer.GetStatus().GetConditions(), func(condition *runtime.RuntimeCondition) bool {
			return strings.HasSuffix(condition.Message, "uninitialized")
		})
	}))
	s.Call("status-verbose", runtime.RuntimeService_Status_FullMethodName, &runtime.StatusRequest{Verbose: true}, Required())
	s.Call("runtime-config", runtime.RuntimeService_RuntimeConfig_FullMethodName, &runtime.RuntimeConfigRequest{})
	s.Call("update-runtime-config", runtime.RuntimeService_UpdateRuntimeConfig_FullMethodName,
		&runtime.UpdateRuntimeConfigRequest{RuntimeConfig: &runtime.RuntimeConfig{
			NetworkConfig: &runtime.NetworkConfig{PodCidr: "10.1.2.0/24"},
		}})
	s.Call("update-runtime-config-empty", runtime.RuntimeService_UpdateRuntimeConfig_FullMethodName,
		&runtime.UpdateRuntimeConfigRequest{})
	s.Call("metric-descriptors", runtime.RuntimeService_ListMetricDescriptors_FullMethodName, &runtime.ListMetricDescriptorsRequest{})
}

func lifeCycle(s *Scenario) {
	pod := s.RunPod("run", &Pod{Name: "pod", Tier: tierBurstable, Annotations: map[string]string{"note": "kept as it is"}})
	s.Call("pod-status", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: pod.id})
	s.Call("pod-status-verbose", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: pod.id, Verbose: true})
	trap := "trap 'exit 7' TERM; while :; do /bin/busybox sleep 0.05; done"
	first := s.Create("create-first", pod, &Container{Name: "first", Command: shell(trap)})
	s.Status("status-created", first)
	s.VerboseStatus("status-created-verbose", first)
	s.Start("start-first", first)
	s.Status("status-running", first)
	s.VerboseStatus("status-running-verbose", first)
	second := s.Create("create-second", pod, &Container{Name: "second", Command: briefly("exit 42")})
	s.Start("start-second", second)
	s.AwaitExit("second-exited", second)
	s.Call("list-containers", methodListContainers, &runtime.ListContainersRequest{})
	s.Exec("settle", first, "exit 0", 5)
	s.Stop("stop-with-grace", first, 10)
	s.Status("status-stopped", first)
	s.Stop("stop-again", first, 0)
	s.Remove("remove-first", first)
	s.Remove("remove-first-again", first)
	s.Status("status-removed", first)
	s.StopPod("stop-pod", pod)
	s.StopPod("stop-pod-again", pod)
	s.Call("pod-status-stopped", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: pod.id})
	s.RemovePod("remove-pod", pod)
	s.RemovePod("remove-pod-again", pod)
	s.Status("status-removed-with-pod", second)
	s.Call("pod-status-removed", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: pod.id})
	s.Call("list-pods-after", methodListPods, &runtime.ListPodSandboxRequest{})
	s.Call("list-containers-after", methodListContainers, &runtime.ListContainersRequest{})
	again := s.RunPod("run-anew", &Pod{Name: "pod", Tier: tierBurstable})
	s.RemovePod("remove-while-ready", again)
	s.Call("pod-status-removed-while-ready", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: again.id})
}

func wrongOrder(s *Scenario) {
	pod := s.RunPod("run", &Pod{Name: "pod"})
	container := s.Create("create", pod, &Container{Name: "main"})
	s.Exec("exec-before-start", container, "exit 0", 1)
	s.Call("reopen-log-before-start", runtime.RuntimeService_ReopenContainerLog_FullMethodName,
		&runtime.ReopenContainerLogRequest{ContainerId: container.id})
	s.Call("stats-before-start", runtime.RuntimeService_ContainerStats_FullMethodName,
		&runtime.ContainerStatsRequest{ContainerId: container.id})
	// containerd leaves what has not started as it is, CRI-O ends it.
	early := s.Create("create-early", pod, &Container{Name: "early"})
	s.Stop("stop-before-start", early, 0)
	s.Call("start-after-stop", methodStart, &runtime.StartContainerRequest{ContainerId: early.id})
	s.Start("start", container)
	s.Call("start-twice", methodStart, &runtime.StartContainerRequest{ContainerId: container.id})
	s.Stop("stop", container, 0)
	s.Call("start-after-exit", methodStart, &runtime.StartContainerRequest{ContainerId: container.id})
	s.Exec("exec-after-exit", container, "exit 0", 1)
	s.Call("attach-after-exit", runtime.RuntimeService_Attach_FullMethodName,
		&runtime.AttachRequest{ContainerId: container.id, Stdout: true})
	running := s.Create("create-running", pod, &Container{Name: "running"})
	s.Start("start-running", running)
	s.Remove("remove-while-running", running)
	s.Status("status-after-removal", running)
	left := s.Create("create-left", pod, &Container{Name: "left"})
	s.StopPod("stop-pod", pod)
	s.Call("start-in-stopped-pod", methodStart, &runtime.StartContainerRequest{ContainerId: left.id})
	late := &Container{Name: "late"}
	late.created(s.Call("create-in-stopped-pod", methodCreate, s.createRequest(pod, late)))
	s.Call("port-forward-to-stopped-pod", runtime.RuntimeService_PortForward_FullMethodName,
		&runtime.PortForwardRequest{PodSandboxId: pod.id, Port: []int32{80}})
	s.Call("pod-stats-of-stopped-pod", runtime.RuntimeService_PodSandboxStats_FullMethodName,
		&runtime.PodSandboxStatsRequest{PodSandboxId: pod.id})
	s.RemovePod("remove-pod", pod)
	gone := &Container{Name: "gone"}
	gone.created(s.Call("create-in-removed-pod", methodCreate, s.createRequest(pod, gone)))
}

func duplicateNames(s *Scenario) {
	pod := s.RunPod("run", &Pod{Name: "pod"})
	s.Call("run-again", methodRunPod, &runtime.RunPodSandboxRequest{Config: pod.config})
	s.Create("create", pod, &Container{Name: "main"})
	s.Call("create-again", methodCreate, s.createRequest(pod, &Container{Name: "main"}))
	next := s.containerConfig(&Container{Name: "main", pod: pod})
	next.Metadata.Attempt = 1
	s.Call("create-next-attempt", methodCreate, &runtime.CreateContainerRequest{
		PodSandboxId: pod.id, Config: next, SandboxConfig: pod.config,
	}, Required())
	s.Call("list-containers", methodListContainers, &runtime.ListContainersRequest{})
}

func lists(s *Scenario) {
	one := s.RunPod("run-one", &Pod{Name: "one", Labels: map[string]string{"colour": "red"}})
	two := s.RunPod("run-two", &Pod{Name: "two", Tier: tierBestEffort, Labels: map[string]string{"colour": "blue"}})
	running := s.Create("create-running", one, &Container{Name: "running"})
	s.Start("start-running", running)
	s.Create("create-created", one, &Container{Name: "created"})
	exited := s.Create("create-exited", two, &Container{Name: "exited", Command: briefly("exit 0")})
	s.Start("start-exited", exited)
	s.AwaitExit("exited", exited)

	pods := func(step string, filter *runtime.PodSandboxFilter) {
		s.Call("pods-"+step, methodListPods, &runtime.ListPodSandboxRequest{Filter: filter})
	}
	state := func(state runtime.PodSandboxState) *runtime.PodSandboxStateValue {
		return &runtime.PodSandboxStateValue{State: state}
	}
	pods("all", nil)
	pods("empty-filter", &runtime.PodSandboxFilter{})
	pods("by-id", &runtime.PodSandboxFilter{Id: one.id})
	pods("by-short-id", &runtime.PodSandboxFilter{Id: shortened(one.id)})
	pods("by-unknown-id", &runtime.PodSandboxFilter{Id: "no-such-pod"})
	pods("by-label", &runtime.PodSandboxFilter{LabelSelector: map[string]string{"colour": "blue"}})
	pods("by-other-label", &runtime.PodSandboxFilter{LabelSelector: map[string]string{"colour": "green"}})
	pods("ready", &runtime.PodSandboxFilter{State: state(runtime.PodSandboxState_SANDBOX_READY)})
	s.StopPod("stop-two", two)
	pods("not-ready", &runtime.PodSandboxFilter{State: state(runtime.PodSandboxState_SANDBOX_NOTREADY)})
	pods("combined", &runtime.PodSandboxFilter{
		State: state(runtime.PodSandboxState_SANDBOX_READY), LabelSelector: map[string]string{"colour": "blue"},
	})

	containers := func(step string, filter *runtime.ContainerFilter) {
		s.Call("containers-"+step, methodListContainers, &runtime.ListContainersRequest{Filter: filter})
	}
	containers("all", nil)
	containers("by-pod", &runtime.ContainerFilter{PodSandboxId: one.id})
	containers("by-id", &runtime.ContainerFilter{Id: running.id})
	containers("by-short-id", &runtime.ContainerFilter{Id: shortened(running.id)})
	containers("by-label", &runtime.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.container.name": "exited"}})
	containers("by-unknown-id", &runtime.ContainerFilter{Id: "no-such-container"})
	for _, state := range []runtime.ContainerState{
		runtime.ContainerState_CONTAINER_CREATED, runtime.ContainerState_CONTAINER_RUNNING,
		runtime.ContainerState_CONTAINER_EXITED, runtime.ContainerState_CONTAINER_UNKNOWN,
	} {
		containers(state.String(), &runtime.ContainerFilter{State: &runtime.ContainerStateValue{State: state}})
	}
	s.Stream("stream-pods", runtime.RuntimeService_StreamPodSandboxes_FullMethodName, &runtime.StreamPodSandboxesRequest{}, nil)
	s.Stream("stream-containers", runtime.RuntimeService_StreamContainers_FullMethodName, &runtime.StreamContainersRequest{}, nil)
}

// shortened is the prefix of an id by which people name things.
func shortened(id string) string {
	if len(id) < 13 {
		return id
	}
	return id[:13]
}
