package main

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const methodCreate = "/runtime.v1.RuntimeService/CreateContainer"

// Sizes of creations, in bytes. A smaller one has no room for what describes
// the container; a larger one has none left for what hooks add.
const (
	smallestCreation = 1 << 10
	largestCreation  = messageLimit - 4<<10
)

// batchSpec gives the container half a CPU and 64 MiB of batch resources.
const batchSpec = `{"containers":{"main":{` +
	`"limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"67108864"},` +
	`"requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"67108864"}}}}`

// malformedSpec is one that no hook can read.
const malformedSpec = `{"containers":[`

// annotationOriginals has what the container was asked to have.
const annotationOriginals = "runtimeproxy.koordinator.sh/originals"

// decided is what hooks make of batchSpec: half of 1,024 shares, half of the
// period of 100 ms, and the memory; beside it what creation asks for.
const decided = `512 shares, quota 50000, 67108864 bytes, originals ` +
	`{"cpuShares":2,"cpuPeriod":100000,"ours":{"cpuShares":512,"cpuQuota":50000,"memoryLimit":67108864}}`

// encoding is the same for the same message, so that checksums can be compared.
var encoding = proto.MarshalOptions{Deterministic: true}

// requestTo is a message of about this size for a method: where it can be, a
// creation of which a hook decides.
func requestTo(method string, size int, seed uint64) []byte {
	if method != methodCreate || size < smallestCreation {
		return message(size, seed)
	}
	return creation(batchSpec, size, seed)
}

// creation asks for a best-effort container of a pod with these batch
// resources, filled up to the size with a field that nobody knows.
func creation(spec string, size int, seed uint64) []byte {
	uid := fmt.Sprintf("stress-%d", seed)
	encoded, err := encoding.Marshal(&runtime.CreateContainerRequest{
		PodSandboxId: "sandbox-" + uid,
		Config: &runtime.ContainerConfig{
			Metadata: &runtime.ContainerMetadata{Name: "main"},
			Linux: &runtime.LinuxContainerConfig{
				Resources: &runtime.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000},
			},
		},
		SandboxConfig: &runtime.PodSandboxConfig{
			Metadata:    &runtime.PodSandboxMetadata{Name: "stress", Uid: uid, Namespace: "default"},
			Labels:      map[string]string{"koordinator.sh/qosClass": "BE"},
			Annotations: map[string]string{"node.koordinator.sh/extended-resource-spec": spec},
			Linux: &runtime.LinuxPodSandboxConfig{
				// There is no such group: what is decided about the pod has nothing to be written to.
				CgroupParent: "/no-such-root/kubepods/besteffort/pod" + uid,
			},
		},
	})
	if err != nil {
		panic("a message of valid strings can be encoded: " + err.Error())
	}
	return append(encoded, message(size-len(encoded), seed)...)
}

// isDecidedAbout tells whether a proxy has to change this request.
func isDecidedAbout(method string, request []byte) bool {
	return method == methodCreate && len(request) >= smallestCreation && len(request) <= largestCreation
}

// asSent takes what hooks decided away from a creation. It fails if that is
// not there to the letter; whatever else was changed is still in what it gives.
func asSent(arrived []byte) ([]byte, error) {
	creation := &runtime.CreateContainerRequest{}
	if err := proto.Unmarshal(arrived, creation); err != nil {
		return nil, err
	}
	config := creation.GetConfig()
	resources := config.GetLinux().GetResources()
	got := fmt.Sprintf("%d shares, quota %d, %d bytes, originals %s",
		resources.GetCpuShares(), resources.GetCpuQuota(), resources.GetMemoryLimitInBytes(),
		config.GetAnnotations()[annotationOriginals])
	if got != decided {
		return nil, fmt.Errorf("of %d bytes arrived %s", len(arrived), got)
	}
	delete(config.Annotations, annotationOriginals)
	resources.CpuShares, resources.CpuQuota, resources.MemoryLimitInBytes = 2, 0, 0
	return encoding.Marshal(creation)
}
