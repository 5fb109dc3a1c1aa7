package main

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gathering is how long a call waits for the others.
const gathering = 30 * time.Second

// crowd is calls that wait for one another.
type crowd struct {
	mutex    sync.Mutex
	waiting  int
	complete chan struct{}
}

// await returns when so many calls are here at once, or fails when they are
// not in time.
func (c *crowd) await(ctx context.Context, count int) error {
	ctx, cancel := context.WithTimeout(ctx, gathering)
	defer cancel()
	complete := c.join(count)
	select {
	case <-complete:
		return nil
	case <-ctx.Done():
		c.mutex.Lock()
		defer c.mutex.Unlock()
		if c.complete == complete {
			c.waiting--
		}
		return status.Errorf(codes.FailedPrecondition, "%d calls were not here at once", count)
	}
}

func (c *crowd) join(count int) <-chan struct{} {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.complete == nil {
		c.complete = make(chan struct{})
	}
	complete := c.complete
	c.waiting++
	if c.waiting >= count {
		close(complete)
		c.waiting, c.complete = 0, nil
	}
	return complete
}
