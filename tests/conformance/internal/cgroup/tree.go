// Package cgroup makes and removes pod cgroups as a kubelet with the cgroupfs
// driver does, below one parent of our own, in every mounted hierarchy.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// Tree is our part of the cgroup hierarchies.
type Tree struct {
	// parent is an absolute cgroup path, such as "/conformance".
	parent      string
	hierarchies []hierarchy
	// above are the directories above the parent that had to be made as well,
	// outer ones first.
	above []string
}

type hierarchy struct {
	mount string
	// unified: controllers have to be handed down.
	unified bool
	// cpuset: v1, where a new group has no CPU until it is given some.
	cpuset bool
}

// New creates the parent in every hierarchy. A parent that exists already is
// refused: it might be somebody else's.
func New(parent string) (*Tree, error) {
	clean := filepath.Clean("/" + parent)
	if clean == "/" {
		return nil, errors.New("the cgroup parent must not be the root")
	}
	hierarchies, err := mounted()
	if err != nil {
		return nil, err
	}
	tree := &Tree{parent: clean, hierarchies: hierarchies}
	for _, hierarchy := range hierarchies {
		if _, err := os.Stat(filepath.Join(hierarchy.mount, clean)); err == nil {
			return nil, fmt.Errorf("cgroup %s exists already in %s", clean, hierarchy.mount)
		}
	}
	return tree, tree.create("")
}

// Pod creates a pod's cgroup, such as "besteffort/pod1234", and returns its
// full path, to be sent as cgroup_parent.
func (t *Tree) Pod(relative string) (string, error) {
	if err := t.create(relative); err != nil {
		return "", err
	}
	return filepath.Join(t.parent, relative), nil
}

// RemovePods removes everything below the parent. It fails while something
// runs in there.
func (t *Tree) RemovePods() error {
	var failures []error
	for _, hierarchy := range t.hierarchies {
		entries, err := os.ReadDir(filepath.Join(hierarchy.mount, t.parent))
		if err != nil {
			failures = append(failures, err)
			continue
		}
		for _, entry := range entries {
			if entry.IsDir() {
				failures = append(failures, removeTree(filepath.Join(hierarchy.mount, t.parent, entry.Name())))
			}
		}
	}
	return errors.Join(failures...)
}

// Remove removes the parent, everything below it, and what New made above it.
func (t *Tree) Remove() error {
	var failures []error
	for _, hierarchy := range t.hierarchies {
		failures = append(failures, removeTree(filepath.Join(hierarchy.mount, t.parent)))
	}
	for _, directory := range slices.Backward(t.above) {
		failures = append(failures, os.Remove(directory))
	}
	return errors.Join(failures...)
}

// create makes the cgroup and all above it, down from the parent.
func (t *Tree) create(relative string) error {
	for _, hierarchy := range t.hierarchies {
		at := hierarchy.mount
		for _, part := range strings.Split(strings.Trim(filepath.Join(t.parent, relative), "/"), "/") {
			above := at
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, 0o755); errors.Is(err, os.ErrExist) {
				continue
			} else if err != nil {
				return err
			}
			if len(at) < len(filepath.Join(hierarchy.mount, t.parent)) {
				t.above = append(t.above, at)
			}
			if err := hierarchy.initialise(above, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// initialise gives a new cgroup what it needs before a process can enter.
func (h hierarchy) initialise(above, at string) error {
	if h.cpuset {
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(above, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(at, file), value, 0); err != nil {
				return err
			}
		}
	}
	if h.unified {
		return delegate(above)
	}
	return nil
}

// delegate lets the children of a cgroup v2 group use its controllers.
func delegate(at string) error {
	controllers, err := os.ReadFile(filepath.Join(at, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(controllers)) {
		err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if err != nil {
			return fmt.Errorf("enabling %s below %s: %w", controller, at, err)
		}
	}
	return nil
}

func removeTree(root string) error {
	var directories []string
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			directories = append(directories, path)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	sort.Sort(sort.Reverse(sort.StringSlice(directories)))
	var failures []error
	for _, directory := range directories {
		if err := os.Remove(directory); err != nil && !errors.Is(err, os.ErrNotExist) {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

func mounted() ([]hierarchy, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	var found []hierarchy
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || (fields[2] != "cgroup" && fields[2] != "cgroup2") {
			continue
		}
		options := "," + fields[3] + ","
		found = append(found, hierarchy{
			mount:   fields[1],
			unified: fields[2] == "cgroup2",
			cpuset:  strings.Contains(options, ",cpuset,"),
		})
	}
	if len(found) == 0 {
		return nil, errors.Join(errors.New("no cgroup hierarchy is mounted"), lines.Err())
	}
	// Beside v1 hierarchies the v2 one has nothing that a pod needs, and its
	// root is left alone.
	pure := true
	for _, hierarchy := range found {
		pure = pure && hierarchy.unified
	}
	for i := range found {
		found[i].unified = pure
	}
	return found, lines.Err()
}
