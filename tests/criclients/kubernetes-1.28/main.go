// Command kubernetes-1.28 takes a pod through its life with the CRI client of
// the kubelet of Kubernetes 1.28, which sends the socket's path as :authority.
package main

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet/cri/remote"

	"koord/criclients/life"
)

func main() { life.Main("1.28", dial) }

func dial(endpoint string, timeout time.Duration) (life.Runtime, error) {
	service, err := remote.NewRemoteRuntimeService(endpoint, timeout, trace.NewNoopTracerProvider())
	return client{service}, err
}

// client says in one word what this version says with a union.
type client struct{ internalapi.RuntimeService }

func (c client) UpdateLinuxResources(ctx context.Context, id string, resources *runtime.LinuxContainerResources) error {
	return c.UpdateContainerResources(ctx, id, &runtime.ContainerResources{Linux: resources})
}
