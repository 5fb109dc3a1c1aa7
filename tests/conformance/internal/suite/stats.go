package suite

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	methodStats        = runtime.RuntimeService_ContainerStats_FullMethodName
	methodListStats    = runtime.RuntimeService_ListContainerStats_FullMethodName
	methodPodStats     = runtime.RuntimeService_PodSandboxStats_FullMethodName
	methodListPodStats = runtime.RuntimeService_ListPodSandboxStats_FullMethodName
	methodImageFs      = runtime.ImageService_ImageFsInfo_FullMethodName
)

// stats asks for every kind of figures, once the runtime has had a round of
// collecting, so that the presence of each is the same in every run.
func stats(s *Scenario) {
	pod := &Pod{Name: "pod", Labels: map[string]string{"colour": "red"}}
	container := s.Running("pod", pod, &Container{
		Name: "main", Resources: &runtime.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 100},
		Command: willing("echo x > /written; while :; do /bin/busybox sleep 0.1; done"),
	})
	other := s.Create("create-other", pod, &Container{Name: "other"})
	s.Start("start-other", other)
	exited := s.Create("create-exited", pod, &Container{Name: "exited", Command: briefly("exit 0")})
	s.Start("start-exited", exited)
	s.AwaitExit("exited", exited)
	s.awaitCollection(pod)

	s.Call("container", methodStats, &runtime.ContainerStatsRequest{ContainerId: container.id})
	s.Call("other", methodStats, &runtime.ContainerStatsRequest{ContainerId: other.id})
	s.Call("exited-container", methodStats, &runtime.ContainerStatsRequest{ContainerId: exited.id})
	list := func(step string, filter *runtime.ContainerStatsFilter) {
		s.Call("list-"+step, methodListStats, &runtime.ListContainerStatsRequest{Filter: filter})
	}
	list("all", nil)
	list("by-id", &runtime.ContainerStatsFilter{Id: container.id})
	list("by-pod", &runtime.ContainerStatsFilter{PodSandboxId: pod.id})
	list("by-label", &runtime.ContainerStatsFilter{LabelSelector: map[string]string{"io.kubernetes.container.name": "other"}})
	s.Call("pod", methodPodStats, &runtime.PodSandboxStatsRequest{PodSandboxId: pod.id})
	pods := func(step, colour string) {
		filter := &runtime.PodSandboxStatsFilter{LabelSelector: map[string]string{"colour": colour}}
		s.Call(step, methodListPodStats, &runtime.ListPodSandboxStatsRequest{Filter: filter})
	}
	pods("pods", "red")
	pods("pods-by-unknown-label", "green")
	s.Call("metric-descriptors", runtime.RuntimeService_ListMetricDescriptors_FullMethodName, &runtime.ListMetricDescriptorsRequest{})
	s.Call("pod-metrics", runtime.RuntimeService_ListPodSandboxMetrics_FullMethodName, &runtime.ListPodSandboxMetricsRequest{})
	s.Call("image-fs", methodImageFs, &runtime.ImageFsInfoRequest{}, Required(), Until(callTimeout, func(reply *Reply) bool {
		answer := &runtime.ImageFsInfoResponse{}
		into(reply, answer)
		for _, usage := range answer.ImageFilesystems {
			if usage.Timestamp < s.recorded.StartedNS || usage.UsedBytes.GetValue() == 0 {
				return false
			}
		}
		return true
	}))
}

// awaitCollection asks, unrecorded, until the file systems of all three
// containers were measured: CRI-O leaves the exited one out. Rates need two
// samples, so every call is made twice.
func (s *Scenario) awaitCollection(pod *Pod) {
	version := &runtime.VersionResponse{}
	_ = s.suite.quietly(s.ctx, runtime.RuntimeService_Version_FullMethodName, &runtime.VersionRequest{}, version)
	containers := 3
	if version.RuntimeName == "cri-o" {
		containers = 2
	}
	deadline := time.Now().Add(callTimeout)
	for round := 0; time.Now().Before(deadline) && s.ctx.Err() == nil; round++ {
		answer := &runtime.ListContainerStatsResponse{}
		listed := s.suite.quietly(s.ctx, methodListStats, &runtime.ListContainerStatsRequest{}, answer)
		pods := s.suite.quietly(s.ctx, methodPodStats, &runtime.PodSandboxStatsRequest{PodSandboxId: pod.id}, nil)
		offered := listed == nil && (pods == nil || status.Code(pods) == codes.Unimplemented)
		if round > 0 && offered && len(answer.Stats) == containers && collected(answer.Stats) {
			return
		}
		time.Sleep(300 * time.Millisecond)
	}
}

func collected(list []*runtime.ContainerStats) bool {
	for _, stats := range list {
		if stats.GetWritableLayer().GetUsedBytes().GetValue() == 0 {
			return false
		}
	}
	return true
}
