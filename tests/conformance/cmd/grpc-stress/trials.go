package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// trial is one kind of ill treatment. What it reports has to be the same on
// every path; an error means that it failed by its own measure.
type trial struct {
	name string
	run  func(ctx context.Context, client client, load load) (string, error)
	// needsName is set where it is not for a server that is there, or not for a
	// proxy as it is by itself.
	needsName bool
}

var trials = []trial{
	{name: "sizes", run: sizes},
	{name: "streams", run: openStreams},
	{name: "creates", run: creates},
	{name: "cancels", run: cancels},
	{name: "codes", run: statusCodes},
	{name: "slow-reader", run: slowReader},
	{name: "trailers", run: trailers},
	{name: "goaway", run: goawayStorm},
	{name: "gone", run: gone, needsName: true},
	{name: "refused", run: refused, needsName: true},
}

func trialNames() []string {
	var names []string
	for _, trial := range trials {
		names = append(names, trial.name)
	}
	return names
}

// sizes sends and receives messages around every edge of frames and windows,
// up to a runtime's limit and one byte more.
func sizes(ctx context.Context, client client, load load) (string, error) {
	var seen outcomes
	list := []int{0, 8, 100, 16383 - 5, 16384 - 5, 16385 - 5, 65535 - 5, 65536 - 5, 65537, 1 << 20, 1<<22 + 1, largestCreation, messageLimit}
	for _, method := range load.methods {
		for i, size := range list {
			seen.add(client.ask(ctx, method, requestTo(method, size, uint64(i)), size))
		}
	}
	if err := seen.onlyOK(); err != nil {
		return seen.String(), err
	}
	for _, method := range load.methods {
		seen.add(client.ask(ctx, method, requestTo(method, messageLimit+1, 1), 0))
		seen.add(client.ask(ctx, method, requestTo(method, smallestCreation, 1), messageLimit+1))
	}
	// More than a proxy opens: these are not all looked into, but all arrive.
	var together outcomes
	each(4*len(load.methods), 4*len(load.methods), func(i int) {
		method := load.methods[i%len(load.methods)]
		together.add(client.ask(ctx, method, requestTo(method, messageLimit, uint64(i)), 100))
	})
	// As many as it does.
	each(4, 4, func(i int) {
		together.add(client.ask(ctx, methodCreate, requestTo(methodCreate, largestCreation, uint64(i)), 100))
	})
	return fmt.Sprintf("%s; of the largest at once: %s", &seen, &together), together.onlyOK()
}

// openStreams keeps many streams open and makes as many calls beside them, all
// of them claimed: the server answers none before it has them all.
func openStreams(ctx context.Context, client client, load load) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, err := client.abandoned(ctx)
	if err != nil {
		return "", err
	}
	var opened, asked outcomes
	each(load.streams, 200, func(i int) {
		request := message(200, uint64(i))
		stream, err := client.follow(ctx, methodStream, request, headerReplySize, "64", headerHold, "600000")
		if err != nil {
			opened.add(err)
			return
		}
		var reply []byte
		if err := stream.RecvMsg(&reply); err == nil && !isReplyTo(request, reply, 64, 0) {
			opened.count("wrong reply")
		} else {
			opened.add(err)
		}
	})
	together := metadata.AppendToOutgoingContext(ctx, headerGather, strconv.Itoa(load.streams))
	each(load.streams, load.streams, func(i int) {
		method := claimed[i%len(claimed)]
		asked.add(client.ask(together, method, requestTo(method, 8<<10, uint64(i)), 100))
	})
	cancel()
	ended, err := client.awaitAbandoned(context.WithoutCancel(ctx), before, uint64(load.streams))
	report := fmt.Sprintf("streams %s; calls %s; ended at the server: %d", &opened, &asked, ended)
	return report, errors.Join(err, opened.onlyOK(), asked.onlyOK())
}

// creates makes very many calls on one connection.
func creates(ctx context.Context, client client, load load) (string, error) {
	var seen outcomes
	requests := make([][]byte, 64)
	for i := range requests {
		requests[i] = requestTo(load.methods[0], smallestCreation+i*128, uint64(i))
	}
	each(load.creates, 64, func(i int) {
		seen.add(client.ask(ctx, load.methods[0], requests[i%len(requests)], 64))
	})
	return seen.String(), seen.onlyOK()
}

// reaching is how long a call has to be at the server before it is given up or
// runs out of time: one that was not there yet is never noticed.
const reaching = 2 * time.Second

// cancels gives calls up and lets them run out of time; the server has to
// notice each.
func cancels(ctx context.Context, client client, load load) (string, error) {
	before, err := client.abandoned(ctx)
	if err != nil {
		return "", err
	}
	var cancelled, late, whole outcomes
	each(load.cancels, 50, func(i int) {
		method := load.methods[i%len(load.methods)]
		holding := metadata.AppendToOutgoingContext(ctx, headerReplies, "0", headerHold, "60000")
		small := requestTo(method, smallestCreation+i, uint64(i))
		switch i % 4 {
		case 0:
			ctx, cancel := context.WithCancel(holding)
			timer := time.AfterFunc(reaching, cancel)
			defer timer.Stop()
			_, err := client.call(ctx, method, small)
			cancelled.add(err)
			cancel()
		case 1:
			ctx, cancel := context.WithTimeout(holding, reaching)
			defer cancel()
			_, err := client.call(ctx, method, small)
			late.add(err)
		case 2:
			// Given up while a large message is on its way.
			ctx, cancel := context.WithCancel(holding)
			timer := time.AfterFunc(300*time.Millisecond, cancel)
			defer timer.Stop()
			_, err := client.call(ctx, method, requestTo(method, 300<<10, uint64(i)))
			cancelled.add(err)
			cancel()
		default:
			whole.add(client.ask(ctx, method, small, 100))
		}
	})
	// Calls that were given up before they reached the server are not seen by
	// it; those with a small message all are, long before their time is over.
	small := uint64(0)
	for i := range load.cancels {
		if i%4 < 2 {
			small++
		}
	}
	ended, err := client.awaitAbandoned(ctx, before, small)
	if err == nil && ended < small {
		err = fmt.Errorf("the server noticed %d of at least %d", ended, small)
	}
	return fmt.Sprintf("cancelled %s; late %s; whole %s", &cancelled, &late, &whole), errors.Join(err, whole.onlyOK())
}

// statusCodes asks for every error a server can give.
func statusCodes(ctx context.Context, client client, load load) (string, error) {
	report := ""
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		asked := metadata.AppendToOutgoingContext(ctx, headerCode, strconv.Itoa(int(code)))
		method := load.methods[int(code)%len(load.methods)]
		_, err := client.call(asked, method, requestTo(method, smallestCreation, 1))
		got := status.Convert(err)
		report += fmt.Sprintf("%d/%d ", got.Code(), len(got.Message()))
		if got.Code() != code {
			return report, fmt.Errorf("asked for %s, got %s: %s", code, got.Code(), got.Message())
		}
	}
	return report, nil
}

// slowReader lets a stream of 32 MiB stand unread while others are served.
func slowReader(ctx context.Context, client client, load load) (string, error) {
	const replies, size = 512, 64 << 10
	request := message(100, 1)
	stream, err := client.follow(ctx, methodStream, request,
		headerReplySize, strconv.Itoa(size), headerReplies, strconv.Itoa(replies))
	if err != nil {
		return "", err
	}
	var beside outcomes
	each(200, 20, func(i int) {
		method := load.methods[i%len(load.methods)]
		beside.add(client.ask(ctx, method, requestTo(method, 8<<10, uint64(i)), 100))
	})
	for i := 0; ; i++ {
		var reply []byte
		if err := stream.RecvMsg(&reply); errors.Is(err, io.EOF) && i == replies {
			return fmt.Sprintf("%d messages; beside them %s", i, &beside), beside.onlyOK()
		} else if err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
		if !isReplyTo(request, reply, size, i) {
			return "", fmt.Errorf("message %d is wrong", i)
		}
	}
}

// trailers asks for trailers of 64 KiB.
func trailers(ctx context.Context, client client, load load) (string, error) {
	var seen outcomes
	for i := range 20 {
		method := load.methods[i%len(load.methods)]
		stream, err := client.follow(ctx, method, requestTo(method, smallestCreation, uint64(i)),
			headerTrailer, strconv.Itoa(64<<10), headerReplySize, "100")
		if err != nil {
			return "", err
		}
		for err == nil {
			var reply []byte
			err = stream.RecvMsg(&reply)
		}
		length := 0
		for _, value := range stream.Trailer().Get(nameOfTrailer) {
			length += len(value)
		}
		seen.count(fmt.Sprintf("trailer of %d bytes", length))
	}
	return seen.String(), nil
}

// goawayStorm calls without a break. It means most against a server with
// --max-connection-age: no call may be lost to a connection's end.
func goawayStorm(ctx context.Context, client client, load load) (string, error) {
	var seen outcomes
	deadline := time.Now().Add(load.storm)
	each(16, 16, func(worker int) {
		for i := 0; time.Now().Before(deadline) && ctx.Err() == nil; i++ {
			method := load.methods[(worker+i)%len(load.methods)]
			err := client.ask(ctx, method, requestTo(method, 1<<10*(1+i%32), uint64(i)), 1000)
			if err != nil {
				seen.add(err)
			}
		}
	})
	if err := seen.onlyOK(); err != nil {
		return seen.String(), err
	}
	return "no call failed", nil
}

// gone calls and opens streams where no server is: each is told so, and before
// its time is over.
func gone(ctx context.Context, client client, load load) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var calls, streams outcomes
	for i := range 100 {
		method := load.methods[i%len(load.methods)]
		calls.add(client.ask(ctx, method, requestTo(method, 8<<10, uint64(i)), 100))
		stream, err := client.follow(ctx, methodStream, message(100, uint64(i)), headerReplySize, "64")
		if err == nil {
			var reply []byte
			err = stream.RecvMsg(&reply)
		}
		streams.add(err)
	}
	report := fmt.Sprintf("calls %s; streams %s", &calls, &streams)
	if report != "calls Unavailable: 100; streams Unavailable: 100" {
		return report, errors.New("not every call was told that the server is gone")
	}
	return report, nil
}
