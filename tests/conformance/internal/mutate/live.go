package mutate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/canon"
	"koord/conformance/internal/compare"
	"koord/conformance/internal/suite"
	"koord/conformance/internal/transcript"
)

// answeredByLibrary is the one step that a forwarder cannot pass on: a method
// name without a service is refused by the gRPC library itself, with another
// status in older versions.
const answeredByLibrary = "method-without-service"

// Live runs the suite through a proxy that alters one field of one reply, and
// checks that the comparison with a direct run fails, count times with another
// field of another method. Before, it checks that the same proxy without an
// alteration makes no difference.
func Live(ctx context.Context, config suite.Config, count int, seed uint64) error {
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
	differences = slices.DeleteFunc(differences, func(d compare.Difference) bool { return d.Step == answeredByLibrary })
	if len(differences) > 0 {
		return fmt.Errorf("%d differences through an honest proxy, the first: %s", len(differences), differences[0])
	}
	config.Log("an honest proxy makes no difference")
	var unnoticed []error
	for _, alteration := range pick(direct, count, rand.New(rand.NewPCG(seed, seed))) {
		differences, hits, err := live.through(ctx, &alteration)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", alteration, err)
		case hits == 0:
			unnoticed = append(unnoticed, fmt.Errorf("never applied: %s", alteration))
		case len(differences) == 0:
			unnoticed = append(unnoticed, fmt.Errorf("unnoticed: %s", alteration))
		default:
			config.Log("noticed, %d differences: %s", len(differences), alteration)
		}
	}
	return errors.Join(unnoticed...)
}

type liveRun struct {
	config    suite.Config
	direct    *transcript.Transcript
	directory string
}

// through runs the suite by way of the forwarder: all scenarios without an
// alteration, else the one where it shows.
func (l *liveRun) through(ctx context.Context, alteration *Alteration) ([]compare.Difference, int64, error) {
	alter := func(string, string, int, []byte) ([]byte, bool) { return nil, false }
	config := l.config
	direct := *l.direct
	if alteration != nil {
		alter = alteration.alter
		config.Only = []string{alteration.Scenario}
		config.Log = func(string, ...any) {}
		direct.Scenarios = []transcript.Scenario{*l.direct.Scenario(alteration.Scenario)}
	}
	socket := filepath.Join(l.directory, "proxy.sock")
	forwarder, err := NewForwarder(socket, l.config.Endpoint, alter)
	if err != nil {
		return nil, 0, err
	}
	config.Endpoint = socket
	proxied, err := suite.Run(ctx, config)
	err = errors.Join(err, forwarder.Close())
	if err != nil {
		return nil, 0, err
	}
	return compare.Transcripts(&direct, proxied), forwarder.Hits(), nil
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

// pick chooses alterations at random, of as many methods as there are before
// any comes twice.
func pick(recorded *transcript.Transcript, count int, random *rand.Rand) []Alteration {
	byMethod := map[string][]Alteration{}
	for i := range recorded.Scenarios {
		scenario := &recorded.Scenarios[i]
		for j := range scenario.Steps {
			step := &scenario.Steps[j]
			if step.Method == runtime.RuntimeService_GetContainerEvents_FullMethodName {
				// The suite takes the events before its own off the stream.
				continue
			}
			for _, alteration := range Of(scenario.Name, step) {
				if alteration.Nature == canon.Exact && alteration.token < 0 && alteration.How != Blank {
					byMethod[step.Method] = append(byMethod[step.Method], alteration)
				}
			}
		}
	}
	methods := make([]string, 0, len(byMethod))
	for method := range byMethod {
		methods = append(methods, method)
	}
	sort.Strings(methods)
	random.Shuffle(len(methods), func(i, j int) { methods[i], methods[j] = methods[j], methods[i] })
	var picked []Alteration
	for i := 0; len(picked) < count && len(methods) > 0; i++ {
		list := byMethod[methods[i%len(methods)]]
		picked = append(picked, list[random.IntN(len(list))])
	}
	return picked
}
