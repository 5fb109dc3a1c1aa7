package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const service = "koord.Echo"

// sizes are those around which something changes: an empty message, ttrpc's
// read buffer, frames of 64 KiB, a message of nearly 4 MiB.
var sizes = []int{0, 1, 127, 128, 4000, 4050, 4060, 4096, 5000, 65535, 65536, 1 << 20, 4<<20 - 100}

// echo calls what it serves: each end echoes, and asks the other to.
func echo(ctx context.Context, socket string) error {
	trunk, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	// What comes for a connection that is not open yet is dropped.
	mux := multiplex.Multiplex(trunk, multiplex.WithBlockedRead())
	defer mux.Close()
	listener, err := mux.Listen(multiplex.PluginServiceConn)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.Register(service, map[string]ttrpc.Method{"Echo": answer, "Fail": refuse})
	go server.Serve(ctx, listener)

	conn, err := mux.Open(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	mux.Unblock()
	client := ttrpc.NewClient(conn)
	defer client.Close()
	var callers sync.WaitGroup
	failures := make([]error, 8)
	for caller := range failures {
		callers.Go(func() { failures[caller] = callAll(ctx, client, caller) })
	}
	callers.Wait()
	failures = append(failures, callWrong(ctx, client))
	if err := errors.Join(failures...); err != nil {
		return err
	}
	// The other end says when it has had its answers.
	return client.Call(ctx, service, "Wait", &wrapperspb.BytesValue{}, &wrapperspb.BytesValue{})
}

func answer(_ context.Context, unmarshal func(interface{}) error) (interface{}, error) {
	var request wrapperspb.BytesValue
	if err := unmarshal(&request); err != nil {
		return nil, err
	}
	return &request, nil
}

func refuse(context.Context, func(interface{}) error) (interface{}, error) {
	return nil, status.Error(codes.FailedPrecondition, "not today")
}

func callAll(ctx context.Context, client *ttrpc.Client, caller int) error {
	for _, size := range sizes {
		sent := bytes.Repeat([]byte{byte(caller + 1)}, size)
		var reply wrapperspb.BytesValue
		if err := client.Call(ctx, service, "Echo", wrapperspb.Bytes(sent), &reply); err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
		if !bytes.Equal(sent, reply.Value) {
			return fmt.Errorf("%d bytes came back as %d others", size, len(reply.Value))
		}
	}
	return nil
}

func callWrong(ctx context.Context, client *ttrpc.Client) error {
	for method, code := range map[string]codes.Code{
		"Fail":    codes.FailedPrecondition,
		"Nothing": codes.Unimplemented,
	} {
		var reply wrapperspb.BytesValue
		err := client.Call(ctx, service, method, &reply, &reply)
		if status.Code(err) != code {
			return fmt.Errorf("%s gave %v", method, err)
		}
	}
	return nil
}
