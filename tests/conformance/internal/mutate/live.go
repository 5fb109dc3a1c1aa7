package mutate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"koord/conformance/internal/canon"
	"koord/conformance/internal/compare"
	"koord/conformance/internal/suite"
	"koord/conformance/internal/transcript"
)

// answeredByLibrary is the one step that a forwarder cannot pass on: a method
// name without a service is refused by the gRPC library itself, with another
// status in older versions.
const answeredByLibrary = "method-without-service"

// Live runs the suite through a proxy that alters one field of one reply of each
// scenario, and checks that the comparison with a direct run fails in each; as
// many rounds, each with other fields. Before, it checks that the same proxy
// without an alteration makes no difference.
func Live(ctx context.Context, config suite.Config, rounds int, seed uint64) error {
	directory, err := os.MkdirTemp("", "conformance-live-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	direct, err := suite.Run(ctx, config)
	if err != nil {
		return err
	}
	live := &liveRun{config: config, direct: direct, directory: directory}
	differences, _, err := live.through(ctx, nil)
	if err != nil {
		return err
	}
	if len(differences) > 0 {
		return fmt.Errorf("%d differences through an honest proxy, the first: %s", len(differences), differences[0])
	}
	config.Log("an honest proxy makes no difference")
	random, used := rand.New(rand.NewPCG(seed, seed)), map[string]int{}
	var unnoticed []error
	for range rounds {
		alterations := pick(direct, used, random)
		differences, applied, err := live.through(ctx, alterations)
		if err != nil {
			return err
		}
		unnoticed = append(unnoticed, live.judge(alterations, differences, applied)...)
	}
	return errors.Join(unnoticed...)
}

type liveRun struct {
	config    suite.Config
	direct    *transcript.Transcript
	directory string
}

// judge lists the alterations that were not made, or made no difference in their
// scenario. In the others they cannot make one: ids are numbered within each.
func (l *liveRun) judge(alterations []Alteration, differences []compare.Difference, applied []bool) []error {
	var unnoticed []error
	for i, alteration := range alterations {
		count := 0
		for _, difference := range differences {
			if difference.Scenario == alteration.Scenario {
				count++
			}
		}
		switch {
		case !applied[i]:
			unnoticed = append(unnoticed, fmt.Errorf("never applied: %s", alteration))
		case count == 0:
			unnoticed = append(unnoticed, fmt.Errorf("unnoticed: %s", alteration))
		default:
			l.config.Log("noticed, %d differences: %s", count, alteration)
		}
	}
	return unnoticed
}

// through runs the suite by way of the forwarder, which makes these alterations,
// and tells which of them it made.
func (l *liveRun) through(ctx context.Context, alterations []Alteration) ([]compare.Difference, []bool, error) {
	applied := make([]atomic.Bool, len(alterations))
	alter := func(step, method string, index int, data []byte) ([]byte, bool) {
		for i := range alterations {
			if altered, ok := alterations[i].alter(step, method, index, data); ok {
				applied[i].Store(true)
				return altered, true
			}
		}
		return nil, false
	}
	config := l.config
	if len(alterations) > 0 {
		config.Log = func(string, ...any) {}
	}
	socket := filepath.Join(l.directory, "proxy.sock")
	forwarder, err := NewForwarder(socket, l.config.Endpoint, alter)
	if err != nil {
		return nil, nil, err
	}
	config.Endpoint = socket
	proxied, err := suite.Run(ctx, config)
	err = errors.Join(err, forwarder.Close())
	if err != nil {
		return nil, nil, err
	}
	differences := slices.DeleteFunc(compare.Transcripts(l.direct, proxied),
		func(d compare.Difference) bool { return d.Step == answeredByLibrary })
	made := make([]bool, len(applied))
	for i := range applied {
		made[i] = applied[i].Load()
	}
	return differences, made, nil
}

// alter changes the reply if it is the one. A reply of another shape than the
// recorded one is left alone.
func (a *Alteration) alter(step, method string, index int, data []byte) ([]byte, bool) {
	if step != a.Scenario+"/"+a.Step || index != a.Reply {
		return nil, false
	}
	altered, err := a.Apply(method, data)
	return altered, err == nil
}

// pick chooses one alteration of each scenario at random, of a method of which
// the fewest have been chosen before.
func pick(recorded *transcript.Transcript, used map[string]int, random *rand.Rand) []Alteration {
	var picked []Alteration
	for i := range recorded.Scenarios {
		byMethod := alterable(&recorded.Scenarios[i])
		methods := slices.Sorted(maps.Keys(byMethod))
		if len(methods) == 0 {
			continue
		}
		random.Shuffle(len(methods), func(i, j int) { methods[i], methods[j] = methods[j], methods[i] })
		method := slices.MinFunc(methods, func(a, b string) int { return used[a] - used[b] })
		used[method]++
		list := byMethod[method]
		picked = append(picked, list[random.IntN(len(list))])
	}
	return picked
}

// alterable lists the alterations of a scenario that have to be noticed, by the
// method whose reply they are made in: those of fields, and what is put into
// empty replies only where there are no others.
func alterable(scenario *transcript.Scenario) map[string][]Alteration {
	ofFields, ofReplies := map[string][]Alteration{}, map[string][]Alteration{}
	for i := range scenario.Steps {
		step := &scenario.Steps[i]
		for _, alteration := range Of(scenario.Name, step) {
			switch {
			case len(alteration.at) == 0:
				ofReplies[step.Method] = append(ofReplies[step.Method], alteration)
			case alteration.Nature == canon.Exact && alteration.token < 0 && alteration.How != Blank:
				ofFields[step.Method] = append(ofFields[step.Method], alteration)
			}
		}
	}
	if len(ofFields) == 0 {
		return ofReplies
	}
	return ofFields
}
