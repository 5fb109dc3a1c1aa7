// Package life takes one pod through its whole life with the CRI client of
// some version of Kubernetes.
//
// It is compiled against the cri-api of that version; only what all of them
// share is used.
package life

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the part of a CRI client that a pod's life needs. Clients up to
// 1.25 take no context; their adapter drops it.
type Runtime interface {
	Version(ctx context.Context, apiVersion string) (*runtime.VersionResponse, error)
	RunPodSandbox(ctx context.Context, config *runtime.PodSandboxConfig, runtimeHandler string) (string, error)
	PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtime.PodSandboxStatusResponse, error)
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
	ListPodSandbox(ctx context.Context, filter *runtime.PodSandboxFilter) ([]*runtime.PodSandbox, error)
	CreateContainer(ctx context.Context, pod string, config *runtime.ContainerConfig, podConfig *runtime.PodSandboxConfig) (string, error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, graceSeconds int64) error
	RemoveContainer(ctx context.Context, id string) error
	ListContainers(ctx context.Context, filter *runtime.ContainerFilter) ([]*runtime.Container, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtime.ContainerStatusResponse, error)
	ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error)
	UpdateLinuxResources(ctx context.Context, id string, resources *runtime.LinuxContainerResources) error
	// LinuxResources is what the status says of them; nil up to 1.24, whose
	// status says nothing.
	LinuxResources(ctx context.Context, id string) (*runtime.LinuxContainerResources, error)
}

// Dial connects a client to an endpoint such as "unix:///run/x.sock".
type Dial func(endpoint string, timeout time.Duration) (Runtime, error)

// callTimeout bounds every call.
const callTimeout = 30 * time.Second

// label marks the pod, so that the lists show no other.
const label = "criclients.test/kubernetes"

// Main is the program of every client: flags in, one JSON line per step out,
// exit status 1 at the first step that failed.
func Main(version string, dial Dial) {
	endpoint := flag.String("endpoint", "", "path of the CRI socket")
	image := flag.String("image", "koord.test/busybox:1", "a busybox image that the runtime has")
	cpus := flag.String("share-pool", "", "CPUs that the pod has to have; empty where nobody decides")
	parent := flag.String("cgroup-parent", "", "cgroup of the pod; the caller removes it")
	flag.Parse()
	if *endpoint == "" || *parent == "" {
		fmt.Fprintln(os.Stderr, "--endpoint and --cgroup-parent are required")
		os.Exit(64)
	}
	client, err := dial("unix://"+*endpoint, callTimeout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "connecting: %v\n", err)
		os.Exit(1)
	}
	logs, err := os.MkdirTemp("", "criclients-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	life := &pod{client: client, version: version, image: *image, parent: *parent, cpus: *cpus, logs: logs, out: os.Stdout}
	err = errors.Join(life.run(context.Background()), os.RemoveAll(logs))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pod is the one pod, with the ids that the steps learn.
type pod struct {
	client                             Runtime
	version, image, parent, cpus, logs string
	out                                io.Writer

	config    *runtime.PodSandboxConfig
	id        string
	container string
	spec      *runtime.ContainerConfig
}

type step struct {
	name string
	run  func(ctx context.Context) (string, error)
}

func (p *pod) run(ctx context.Context) error {
	p.configure()
	for _, step := range []step{
		{"version", p.askVersion},
		{"run-pod", p.runPod},
		{"pod-status", p.podStatus},
		{"create-container", p.createContainer},
		{"start-container", func(ctx context.Context) (string, error) { return "", p.client.StartContainer(ctx, p.container) }},
		{"exec-sync", p.execSync},
		{"container-status", p.containerStatus},
		{"update-resources", p.update},
		{"resources-status", p.resourcesStatus},
		{"resources-in-kernel", p.resourcesInKernel},
		{"list-containers", p.listOne},
		{"stop-container", func(ctx context.Context) (string, error) { return "", p.client.StopContainer(ctx, p.container, 0) }},
		{"remove-container", func(ctx context.Context) (string, error) { return "", p.client.RemoveContainer(ctx, p.container) }},
		{"stop-pod", func(ctx context.Context) (string, error) { return "", p.client.StopPodSandbox(ctx, p.id) }},
		{"remove-pod", func(ctx context.Context) (string, error) { return "", p.client.RemovePodSandbox(ctx, p.id) }},
		{"list-empty", p.listEmpty},
	} {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		result, err := step.run(ctx)
		cancel()
		p.report(step.name, result, err)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", step.name, err), p.clean())
		}
	}
	return nil
}

// report prints one step.
func (p *pod) report(name, result string, err error) {
	line := map[string]any{"client": p.version, "step": name, "ok": err == nil}
	if result != "" {
		line["result"] = result
	}
	if err != nil {
		line["error"] = err.Error()
	}
	data, err := json.Marshal(line)
	if err != nil {
		panic("a map of strings and booleans can be encoded: " + err.Error())
	}
	fmt.Fprintln(p.out, string(data))
}

// clean takes the pod away after a step that failed.
func (p *pod) clean() error {
	if p.id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return errors.Join(p.client.StopPodSandbox(ctx, p.id), p.client.RemovePodSandbox(ctx, p.id))
}

func (p *pod) configure() {
	host := &runtime.NamespaceOption{
		Network: runtime.NamespaceMode_NODE, Pid: runtime.NamespaceMode_CONTAINER, Ipc: runtime.NamespaceMode_POD,
	}
	labels := map[string]string{label: p.version}
	p.config = &runtime.PodSandboxConfig{
		Metadata:     &runtime.PodSandboxMetadata{Name: "life", Uid: "life-" + p.version, Namespace: "criclients"},
		LogDirectory: p.logs, Labels: labels,
		Linux: &runtime.LinuxPodSandboxConfig{
			CgroupParent:    p.parent,
			SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: host},
		},
	}
	p.spec = &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: "main"},
		Image:    &runtime.ImageSpec{Image: p.image},
		Command:  []string{"/bin/busybox", "sleep", "3600"},
		Labels:   labels,
		LogPath:  "main.log",
		Linux: &runtime.LinuxContainerConfig{
			Resources:       &runtime.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 64 << 20},
			SecurityContext: &runtime.LinuxContainerSecurityContext{NamespaceOptions: host},
		},
	}
}

func (p *pod) askVersion(ctx context.Context) (string, error) {
	version, err := p.client.Version(ctx, "0.1.0")
	if err != nil {
		return "", err
	}
	return version.RuntimeName + " " + version.RuntimeVersion, nil
}

func (p *pod) runPod(ctx context.Context) (result string, err error) {
	p.id, err = p.client.RunPodSandbox(ctx, p.config, "")
	return "", err
}

func (p *pod) podStatus(ctx context.Context) (string, error) {
	status, err := p.client.PodSandboxStatus(ctx, p.id, false)
	if err != nil {
		return "", err
	}
	return expect(status.Status.State.String(), "SANDBOX_READY")
}

func (p *pod) createContainer(ctx context.Context) (result string, err error) {
	p.container, err = p.client.CreateContainer(ctx, p.id, p.spec, p.config)
	return "", err
}

func (p *pod) execSync(ctx context.Context) (string, error) {
	command := []string{"/bin/busybox", "sh", "-c", "echo out; echo err >&2"}
	stdout, stderr, err := p.client.ExecSync(ctx, p.container, command, 10*time.Second)
	if err != nil {
		return "", err
	}
	return expect(string(stdout)+string(stderr), "out\nerr\n")
}

func (p *pod) containerStatus(ctx context.Context) (string, error) {
	status, err := p.client.ContainerStatus(ctx, p.container, true)
	if err != nil {
		return "", err
	}
	return expect(status.Status.State.String(), "CONTAINER_RUNNING")
}

func (p *pod) update(ctx context.Context) (string, error) {
	return "", p.client.UpdateLinuxResources(ctx, p.container, &runtime.LinuxContainerResources{CpuShares: 200})
}

// resourcesStatus reads back the shares that the update asked for, and the
// CPUs that it did not.
func (p *pod) resourcesStatus(ctx context.Context) (string, error) {
	resources, err := p.client.LinuxResources(ctx, p.container)
	if err != nil || resources == nil {
		return "", err
	}
	return expect(fmt.Sprintf("%d shares on %q", resources.CpuShares, resources.CpusetCpus),
		fmt.Sprintf("200 shares on %q", p.cpus))
}

// resourcesInKernel reads the same where it counts, in the container's own
// control groups of version 1.
func (p *pod) resourcesInKernel(ctx context.Context) (string, error) {
	command, wanted := []string{"/bin/busybox", "cat", "/sys/fs/cgroup/cpu/cpu.shares"}, "200\n"
	if p.cpus != "" {
		command, wanted = append(command, "/sys/fs/cgroup/cpuset/cpuset.cpus"), wanted+p.cpus+"\n"
	}
	stdout, stderr, err := p.client.ExecSync(ctx, p.container, command, 10*time.Second)
	if err != nil {
		return "", err
	}
	return expect(string(stdout)+string(stderr), wanted)
}

func (p *pod) listOne(ctx context.Context) (string, error) {
	list, err := p.client.ListContainers(ctx, &runtime.ContainerFilter{LabelSelector: map[string]string{label: p.version}})
	if err != nil {
		return "", err
	}
	return expect(fmt.Sprintf("%d containers", len(list)), "1 containers")
}

func (p *pod) listEmpty(ctx context.Context) (string, error) {
	list, err := p.client.ListPodSandbox(ctx, &runtime.PodSandboxFilter{LabelSelector: map[string]string{label: p.version}})
	if err != nil {
		return "", err
	}
	return expect(fmt.Sprintf("%d pods", len(list)), "0 pods")
}

func expect(got, wanted string) (string, error) {
	if got != wanted {
		return "", fmt.Errorf("got %q, wanted %q", got, wanted)
	}
	return got, nil
}
