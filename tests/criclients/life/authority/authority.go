// Package authority finds out what a CRI client sends as :authority, which is
// what strict HTTP/2 libraries refuse in the clients up to Kubernetes 1.30.
package authority

import (
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Sent serves a socket, lets the client make its first call, which is refused,
// and returns the :authority that came with it.
func Sent(socket string, call func(endpoint string)) (string, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return "", err
	}
	seen := make(chan string, 1)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ interface{}, stream grpc.ServerStream) error {
		headers, _ := metadata.FromIncomingContext(stream.Context())
		for _, value := range headers.Get(":authority") {
			select {
			case seen <- value:
			default:
			}
		}
		return status.Error(codes.Unimplemented, "only the headers were of interest")
	}))
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	go call("unix://" + socket)
	select {
	case value := <-seen:
		return value, nil
	case <-time.After(30 * time.Second):
		return "", errors.New("no call came within 30 s")
	}
}
