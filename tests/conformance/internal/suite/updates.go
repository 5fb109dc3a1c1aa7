package suite

import (
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// update is one UpdateContainerResources of few fields.
type update struct {
	step  string
	linux *runtime.LinuxContainerResources
}

// oneByOne sets each field alone.
var oneByOne = []update{
	{"shares", &runtime.LinuxContainerResources{CpuShares: 300}},
	{"quota", &runtime.LinuxContainerResources{CpuQuota: 40000}},
	{"period", &runtime.LinuxContainerResources{CpuPeriod: 50000}},
	{"memory", &runtime.LinuxContainerResources{MemoryLimitInBytes: 96 << 20}},
	{"oom-score", &runtime.LinuxContainerResources{OomScoreAdj: 900}},
	{"cpuset", &runtime.LinuxContainerResources{CpusetCpus: "0"}},
	{"cpuset-memory", &runtime.LinuxContainerResources{CpusetMems: "0"}},
	{"nothing", &runtime.LinuxContainerResources{}},
	{"all", &runtime.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 128 << 20, CpusetCpus: "0-1", CpusetMems: "0",
	}},
}

func updates(s *Scenario) {
	container := s.Running("pod", &Pod{Name: "pod", Tier: tierBurstable}, &Container{
		Name: "main",
		Resources: &runtime.LinuxContainerResources{
			CpuPeriod: 100000, CpuQuota: 60000, CpuShares: 200, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500,
		},
	})
	s.Status("status", container)
	for _, update := range oneByOne {
		s.update(update.step, container, update.linux)
	}
	s.update("impossible-memory", container, &runtime.LinuxContainerResources{MemoryLimitInBytes: 4096})
	s.update("impossible-cpuset", container, &runtime.LinuxContainerResources{CpusetCpus: "9999"})
	s.update("malformed-cpuset", container, &runtime.LinuxContainerResources{CpusetCpus: "zero"})
	s.update("impossible-quota", container, &runtime.LinuxContainerResources{CpuQuota: 1})
	s.update("negative-shares", container, &runtime.LinuxContainerResources{CpuShares: -5})
	s.Call("no-linux", methodUpdate, &runtime.UpdateContainerResourcesRequest{ContainerId: container.id})
	s.Call("annotated", methodUpdate, &runtime.UpdateContainerResourcesRequest{
		ContainerId: container.id, Linux: &runtime.LinuxContainerResources{CpuShares: 400},
		Annotations: map[string]string{"reason": "resize"},
	})
	s.VerboseStatus("status-verbose", container)

	created := s.Create("create-other", container.pod, &Container{Name: "other"})
	s.update("of-created", created, &runtime.LinuxContainerResources{CpuShares: 100})
	s.Start("start-other", created)
	s.awaitWilling("other-is-willing", created)
	s.Stop("stop-other", created, 10)
	s.update("of-exited", created, &runtime.LinuxContainerResources{CpuShares: 150})

	pod := container.pod
	s.Call("pod-resources", runtime.RuntimeService_UpdatePodSandboxResources_FullMethodName,
		&runtime.UpdatePodSandboxResourcesRequest{
			PodSandboxId: pod.id,
			Resources:    &runtime.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, CpuQuota: 60000},
			Overhead:     &runtime.LinuxContainerResources{},
		})
	s.Call("pod-status", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: pod.id, Verbose: true})
}

// update changes resources and looks at the status after it.
func (s *Scenario) update(step string, container *Container, linux *runtime.LinuxContainerResources) {
	s.Call("update-"+step, methodUpdate, &runtime.UpdateContainerResourcesRequest{ContainerId: container.id, Linux: linux})
	s.Status("status-after-"+step, container)
}

// payloads sends content at the edges of what a client may say.
func payloads(s *Scenario) {
	annotations := map[string]string{"huge": strings.Repeat("0123456789abcdef", 8192), "empty": "", "unicode": "Grüße 你好 \u0000 end"}
	for _, letter := range "abcdef" {
		for _, digit := range "0123456789" {
			annotations["example.com/"+string(letter)+string(digit)] = strings.Repeat(string(letter), 64)
		}
	}
	pod := s.RunPod("run", &Pod{Name: "pod", Annotations: annotations})
	s.Call("pod-status", methodPodStatus, &runtime.PodSandboxStatusRequest{PodSandboxId: pod.id})
	container := s.Create("create", pod, &Container{
		Name: "main", Annotations: annotations,
		Envs: []*runtime.KeyValue{
			{Key: "TWICE", Value: []byte("first")}, {Key: "TWICE", Value: []byte("second")},
			{Key: "EMPTY"}, {Key: "SPACES", Value: []byte(" a  b ")}, {Key: "LINES", Value: []byte("one\ntwo")},
		},
	})
	s.Start("start", container)
	s.Status("status", container)
	s.Exec("environment", container, "/bin/busybox tr '\\0' '\\n' < /proc/1/environ", 5)

	binary := &Container{Name: "binary", Envs: []*runtime.KeyValue{{Key: "BINARY", Value: []byte{'a', 0xff, 0xfe, 0x80, 'z'}}}}
	binary.created(s.Call("create-with-binary-value", methodCreate, s.createRequest(pod, binary)))
	s.Call("start-with-binary-value", methodStart, &runtime.StartContainerRequest{ContainerId: binary.id})
	s.Exec("binary-environment", binary, "/bin/busybox tr '\\0' '\\n' < /proc/1/environ", 5)
	s.Call("remove-binary", methodRemove, &runtime.RemoveContainerRequest{ContainerId: binary.id})

	newer := &Container{Name: "newer"}
	future := s.createRequest(pod, newer)
	unknown := oversized(100)
	future.ProtoReflect().SetUnknown(unknown)
	future.Config.ProtoReflect().SetUnknown(unknown)
	future.Config.Linux.ProtoReflect().SetUnknown(unknown)
	future.SandboxConfig.ProtoReflect().SetUnknown(unknown)
	newer.created(s.Call("create-with-unknown-fields", methodCreate, future, Required()))
	s.Status("status-with-unknown-fields", newer)
}
