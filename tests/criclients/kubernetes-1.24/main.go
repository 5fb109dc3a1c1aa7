// Command kubernetes-1.24 takes a pod through its life with the CRI client of
// the kubelet of Kubernetes 1.24, which sends the socket's path as :authority.
package main

import (
	"context"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet/cri/remote"

	"koord/criclients/life"
)

func main() { life.Main("1.24", dial) }

func dial(endpoint string, timeout time.Duration) (life.Runtime, error) {
	service, err := remote.NewRemoteRuntimeService(endpoint, timeout)
	return client{service}, err
}

// client drops the context, which this version's methods do not take.
type client struct{ service internalapi.RuntimeService }

func (c client) Version(_ context.Context, apiVersion string) (*runtime.VersionResponse, error) {
	return c.service.Version(apiVersion)
}

func (c client) RunPodSandbox(_ context.Context, config *runtime.PodSandboxConfig, handler string) (string, error) {
	return c.service.RunPodSandbox(config, handler)
}

func (c client) PodSandboxStatus(_ context.Context, id string, verbose bool) (*runtime.PodSandboxStatusResponse, error) {
	return c.service.PodSandboxStatus(id, verbose)
}

func (c client) StopPodSandbox(_ context.Context, id string) error {
	return c.service.StopPodSandbox(id)
}

func (c client) RemovePodSandbox(_ context.Context, id string) error {
	return c.service.RemovePodSandbox(id)
}

func (c client) ListPodSandbox(_ context.Context, filter *runtime.PodSandboxFilter) ([]*runtime.PodSandbox, error) {
	return c.service.ListPodSandbox(filter)
}

func (c client) CreateContainer(_ context.Context, pod string, config *runtime.ContainerConfig, podConfig *runtime.PodSandboxConfig) (string, error) {
	return c.service.CreateContainer(pod, config, podConfig)
}

func (c client) StartContainer(_ context.Context, id string) error {
	return c.service.StartContainer(id)
}

func (c client) StopContainer(_ context.Context, id string, graceSeconds int64) error {
	return c.service.StopContainer(id, graceSeconds)
}

func (c client) RemoveContainer(_ context.Context, id string) error {
	return c.service.RemoveContainer(id)
}

func (c client) ListContainers(_ context.Context, filter *runtime.ContainerFilter) ([]*runtime.Container, error) {
	return c.service.ListContainers(filter)
}

func (c client) ContainerStatus(_ context.Context, id string, verbose bool) (*runtime.ContainerStatusResponse, error) {
	return c.service.ContainerStatus(id, verbose)
}

func (c client) ExecSync(_ context.Context, id string, command []string, timeout time.Duration) ([]byte, []byte, error) {
	return c.service.ExecSync(id, command, timeout)
}

func (c client) UpdateLinuxResources(_ context.Context, id string, resources *runtime.LinuxContainerResources) error {
	return c.service.UpdateContainerResources(id, resources)
}

// LinuxResources knows nothing: the status of this version has none.
func (c client) LinuxResources(context.Context, string) (*runtime.LinuxContainerResources, error) {
	return nil, nil
}
