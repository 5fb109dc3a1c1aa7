package suite

import (
	"fmt"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// parallel makes 50 calls at once of several kinds, and whole pods' lives
// beside each other.
func parallel(s *Scenario) {
	container := s.Running("pod", &Pod{Name: "pod"}, &Container{Name: "main"})
	var calls []ParallelCall
	for i := range 50 {
		call := ParallelCall{Step: fmt.Sprintf("mixed-%02d", i)}
		switch i % 5 {
		case 0:
			call.Method, call.Request = methodVersion, &runtime.VersionRequest{}
		case 1:
			call.Method, call.Request = methodContainerStatus, &runtime.ContainerStatusRequest{ContainerId: container.id}
		case 2:
			call.Method = methodExecSync
			call.Request = &runtime.ExecSyncRequest{ContainerId: container.id, Cmd: shell(fmt.Sprintf("echo %d; exit %d", i, i)), Timeout: 20}
		case 3:
			call.Method = methodContainerStatus
			call.Request = &runtime.ContainerStatusRequest{ContainerId: strings.Repeat("f", 62) + fmt.Sprintf("%02d", i)}
		case 4:
			call.Method, call.Request = methodListPods, &runtime.ListPodSandboxRequest{}
		}
		calls = append(calls, call)
	}
	s.Parallel(calls)
	manyPods(s)
}

func manyPods(s *Scenario) {
	const count = 8
	pods := make([]*Pod, count)
	containers := make([]*Container, count)
	for i := range pods {
		pods[i] = &Pod{Name: fmt.Sprintf("many-%d", i), Tier: tierBestEffort}
		containers[i] = &Container{Name: "main"}
	}
	each := func(step string, call func(i int) ParallelCall) {
		calls := make([]ParallelCall, count)
		for i := range calls {
			calls[i] = call(i)
			calls[i].Step = fmt.Sprintf("%s-%d", step, i)
			calls[i].Options = append(calls[i].Options, Required())
		}
		s.Parallel(calls)
	}
	each("run", func(i int) ParallelCall {
		return ParallelCall{
			Method: methodRunPod, Request: &runtime.RunPodSandboxRequest{Config: s.podConfig(pods[i])},
			Done: func(reply *Reply) {
				answer := &runtime.RunPodSandboxResponse{}
				into(reply, answer)
				pods[i].id = answer.PodSandboxId
			},
		}
	})
	each("create", func(i int) ParallelCall {
		return ParallelCall{Method: methodCreate, Request: s.createRequest(pods[i], containers[i]), Done: containers[i].created}
	})
	each("start", func(i int) ParallelCall {
		return ParallelCall{Method: methodStart, Request: &runtime.StartContainerRequest{ContainerId: containers[i].id}}
	})
	s.Call("many-running", methodListContainers, &runtime.ListContainersRequest{})
	for i, container := range containers {
		s.awaitWilling(fmt.Sprintf("willing-%d", i), container)
	}
	each("stop", func(i int) ParallelCall {
		return ParallelCall{Method: methodStop, Request: &runtime.StopContainerRequest{ContainerId: containers[i].id, Timeout: 10}}
	})
	each("status", func(i int) ParallelCall {
		return ParallelCall{Method: methodContainerStatus, Request: &runtime.ContainerStatusRequest{ContainerId: containers[i].id}}
	})
	each("stop-pod", func(i int) ParallelCall {
		return ParallelCall{Method: methodStopPod, Request: &runtime.StopPodSandboxRequest{PodSandboxId: pods[i].id}}
	})
	each("remove-pod", func(i int) ParallelCall {
		return ParallelCall{Method: methodRemovePod, Request: &runtime.RemovePodSandboxRequest{PodSandboxId: pods[i].id}}
	})
}

// v1alpha2 repeats a pod's life in the version of the API that kubelets up to
// 1.25 may speak. Runtimes that dropped it say so at every step.
func v1alpha2(s *Scenario) {
	old := func(method string) string { return strings.Replace(method, "/runtime.v1.", "/runtime.v1alpha2.", 1) }
	s.Call("version", old(methodVersion), &runtime.VersionRequest{})
	s.Call("status", old(runtime.RuntimeService_Status_FullMethodName), &runtime.StatusRequest{})
	s.Call("images", old(methodImages), &runtime.ListImagesRequest{})
	s.Call("unknown-pod", old(methodPodStatus), &runtime.PodSandboxStatusRequest{PodSandboxId: unknownID})
	pod := &Pod{Name: "pod", Tier: tierBestEffort}
	answer := &runtime.RunPodSandboxResponse{}
	into(s.Call("run", old(methodRunPod), &runtime.RunPodSandboxRequest{Config: s.podConfig(pod)}), answer)
	pod.id = answer.PodSandboxId
	container := &Container{Name: "main"}
	container.created(s.Call("create", old(methodCreate), s.createRequest(pod, container)))
	s.Call("start", old(methodStart), &runtime.StartContainerRequest{ContainerId: container.id})
	s.Call("exec", old(methodExecSync), &runtime.ExecSyncRequest{ContainerId: container.id, Cmd: shell("echo old"), Timeout: 5})
	s.Call("status-of-container", old(methodContainerStatus), &runtime.ContainerStatusRequest{ContainerId: container.id})
	s.Call("update", old(methodUpdate), &runtime.UpdateContainerResourcesRequest{
		ContainerId: container.id, Linux: &runtime.LinuxContainerResources{CpuShares: 99},
	})
	s.Call("list-pods", old(methodListPods), &runtime.ListPodSandboxRequest{})
	s.Call("list-containers", old(methodListContainers), &runtime.ListContainersRequest{})
	s.Call("seen-by-v1", methodListContainers, &runtime.ListContainersRequest{})
	s.Call("stop", old(methodStop), &runtime.StopContainerRequest{ContainerId: container.id})
	s.Call("remove", old(methodRemove), &runtime.RemoveContainerRequest{ContainerId: container.id})
	s.Call("stop-pod", old(methodStopPod), &runtime.StopPodSandboxRequest{PodSandboxId: pod.id})
	s.Call("remove-pod", old(methodRemovePod), &runtime.RemovePodSandboxRequest{PodSandboxId: pod.id})
}
