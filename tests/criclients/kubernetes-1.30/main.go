// Command kubernetes-1.30 takes a pod through its life with the CRI client of
// the kubelet of Kubernetes 1.30, which sends the socket's path as :authority.
package main

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet/cri/remote"

	"koord/criclients/life"
)

func main() { life.Main("1.30", dial) }

func dial(endpoint string, timeout time.Duration) (life.Runtime, error) {
	service, err := remote.NewRemoteRuntimeService(endpoint, timeout, trace.NewNoopTracerProvider())
	return client{service}, err
}

// client says in one word what this version says with a union.
type client struct{ internalapi.RuntimeService }

func (c client) UpdateLinuxResources(ctx context.Context, id string, resources *runtime.LinuxContainerResources) error {
	return c.UpdateContainerResources(ctx, id, &runtime.ContainerResources{Linux: resources})
}

func (c client) LinuxResources(ctx context.Context, id string) (*runtime.LinuxContainerResources, error) {
	reply, err := c.ContainerStatus(ctx, id, false)
	if err != nil {
		return nil, err
	}
	if linux := reply.GetStatus().GetResources().GetLinux(); linux != nil {
		return linux, nil
	}
	return nil, errors.New("the status has no resources")
}
