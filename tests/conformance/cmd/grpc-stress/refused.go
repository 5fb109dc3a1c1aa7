package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// refused mixes creations that a hook refuses with such that it changes, on
// one connection: the ones end at the proxy, and the others are not touched by
// that. It is for a proxy whose BatchResource must not fail.
func refused(ctx context.Context, client client, load load) (string, error) {
	before, _, err := client.counters(ctx)
	if err != nil {
		return "", err
	}
	var bad, good outcomes
	each(3*load.refusals, 64, func(i int) {
		size := 1 << 10 * (1 + i%32)
		if i%10 == 0 {
			// More than a stream's window.
			size = 300 << 10
		}
		if i%3 == 0 {
			bad.count(client.refusal(ctx, creation(malformedSpec, size, uint64(i))))
		} else {
			good.add(client.askForTrailer(ctx, creation(batchSpec, size, uint64(i)), i%100))
		}
	})
	after, _, err := client.counters(ctx)
	arrived := 2 * load.refusals
	if client.patched == nil {
		arrived = 3 * load.refusals
	}
	if got := after - before; err == nil && got != uint64(arrived) {
		err = fmt.Errorf("%d messages have arrived, and should %d", got, arrived)
	}
	report := fmt.Sprintf("bad %s; good %s", &bad, &good)
	if report != fmt.Sprintf("bad as it should: %d; good OK: %d", load.refusals, 2*load.refusals) {
		err = errors.Join(err, errors.New("not every creation ended as it should"))
	}
	return report, err
}

// refusal says how a creation ended that hooks, where there are any, refuse.
func (c client) refusal(ctx context.Context, request []byte) string {
	ctx = metadata.AppendToOutgoingContext(ctx, headerReplySize, "100")
	var reply []byte
	err := c.Invoke(ctx, methodCreate, request, &reply)
	if c.patched == nil && err == nil && isReplyTo(request, reply, 100, 0) {
		return "as it should"
	}
	told := status.Convert(err)
	// The hook by its name: the server could have the same code to say.
	if c.patched != nil && told.Code() == codes.FailedPrecondition && strings.Contains(told.Message(), "BatchResource") {
		return "as it should"
	}
	return fmt.Sprintf("%s %s", told.Code(), told.Message())
}

// askForTrailer makes a creation whose reply ends with so long a trailer, from
// the same table of headers as all replies of the connection.
func (c client) askForTrailer(ctx context.Context, request []byte, length int) error {
	ctx = metadata.AppendToOutgoingContext(ctx, headerTrailer, fmt.Sprint(length))
	var trailer metadata.MD
	if err := c.ask(ctx, methodCreate, request, 1000, grpc.Trailer(&trailer)); err != nil {
		return err
	}
	if got := strings.Join(trailer.Get(nameOfTrailer), ""); got != strings.Repeat("t", length) {
		return fmt.Errorf("the trailer should have %d bytes and is %q", length, got)
	}
	return nil
}
