package suite

import (
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// class is a pod of one QoS class with what its webhook and scheduler would
// have written on it.
type class struct {
	pod       *Pod
	resources *runtime.LinuxContainerResources
}

func classes() []class {
	return []class{
		{
			pod: &Pod{
				Name: "lsr", Tier: tierGuaranteed,
				Labels: map[string]string{
					"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod",
				},
				Annotations: map[string]string{"scheduling.koordinator.sh/resource-status": `{"cpuset":"0"}`},
			},
			resources: &runtime.LinuxContainerResources{
				CpuPeriod: 100000, CpuQuota: 100000, CpuShares: 1024, MemoryLimitInBytes: 128 << 20, OomScoreAdj: 1,
			},
		},
		{
			pod: &Pod{
				Name: "ls", Tier: tierBurstable,
				Labels: map[string]string{"koordinator.sh/qosClass": "LS"},
			},
			resources: &runtime.LinuxContainerResources{
				CpuPeriod: 100000, CpuQuota: 200000, CpuShares: 512, MemoryLimitInBytes: 128 << 20, OomScoreAdj: 900,
			},
		},
		{
			pod: &Pod{
				Name: "be", Tier: tierBestEffort,
				Labels: map[string]string{
					"koordinator.sh/qosClass": "BE", "koordinator.sh/priority-class": "koord-batch",
				},
				Annotations: map[string]string{"node.koordinator.sh/extended-resource-spec": batchSpec},
			},
			resources: &runtime.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000},
		},
		{
			pod:       &Pod{Name: "plain", Tier: tierBestEffort},
			resources: &runtime.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000},
		},
		{
			pod: &Pod{
				Name: "skipped", Tier: tierBestEffort,
				Labels: map[string]string{
					"koordinator.sh/qosClass": "BE", "runtimeproxy.koordinator.sh/skip-hookserver": "true",
				},
				Annotations: map[string]string{"node.koordinator.sh/extended-resource-spec": batchSpec},
			},
			resources: &runtime.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000},
		},
		{
			pod: &Pod{
				Name: "malformed", Tier: tierBestEffort,
				Labels: map[string]string{"koordinator.sh/qosClass": "BE"},
				Annotations: map[string]string{
					"node.koordinator.sh/extended-resource-spec": `{"containers":[`,
					"scheduling.koordinator.sh/resource-status":  `not json`,
				},
			},
			resources: &runtime.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000},
		},
	}
}

// batchSpec gives the container half a CPU and 64 MiB of batch resources.
const batchSpec = `{"containers":{"main":{` +
	`"limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"67108864"},` +
	`"requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"67108864"}}}}`

// qosClasses runs a pod of every class through its life. What the hooks of a
// proxy change here, and nothing else, has to be in the allow list.
func qosClasses(s *Scenario) {
	var containers []*Container
	for _, class := range classes() {
		container := &Container{Name: "main", Resources: class.resources}
		s.Running(class.pod.Name, class.pod, container)
		containers = append(containers, container)
	}
	for _, container := range containers {
		s.Status(container.pod.Name+"-status", container)
	}
	s.Call("list", methodListContainers, &runtime.ListContainersRequest{})
	for _, container := range containers {
		name := container.pod.Name
		s.update(name+"-oom-score", container, &runtime.LinuxContainerResources{OomScoreAdj: 1000})
		s.update(name+"-shares", container, &runtime.LinuxContainerResources{CpuShares: 77})
		s.update(name+"-memory", container, &runtime.LinuxContainerResources{MemoryLimitInBytes: 100 << 20})
	}
	for _, container := range containers {
		s.VerboseStatus(container.pod.Name+"-status-verbose", container)
		s.Call(container.pod.Name+"-pod-status", methodPodStatus,
			&runtime.PodSandboxStatusRequest{PodSandboxId: container.pod.id, Verbose: true})
		s.Stop(container.pod.Name+"-stop", container, 0)
		s.Remove(container.pod.Name+"-remove", container)
		s.StopPod(container.pod.Name+"-stop-pod", container.pod)
		s.RemovePod(container.pod.Name+"-remove-pod", container.pod)
	}
}
