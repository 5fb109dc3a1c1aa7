package canon

import (
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"
)

// mask replaces values whose content differs from run to run by what they are
// and the order in which they first appeared.
type mask struct {
	names     map[string]map[string]string
	paths     []labelledPath
	startedNS int64
	endedNS   int64
	// peek reads without numbering: what has no name yet reads "?".
	peek bool
}

type labelledPath struct{ path, label string }

const shortestID = 12

// longestText is the size in bytes above which a text is content of a client's
// own (an annotation), compared as it is.
const longestText = 16 << 10

// The forms that are told by content alone, in any text: error messages,
// paths, URLs, values in JSON.
var (
	// A runtime's id: 64 hexadecimal digits, but not an image's digest, which
	// is content.
	idForm = regexp.MustCompile(`(sha256:)?\b[0-9a-f]{64}\b`)
	// The beginning of an id, where it is one of an id that came before.
	// shortestID digits make it unlikely to be met by chance.
	shortIDForm = regexp.MustCompile(`\b[0-9a-f]{12,63}\b`)
	// An address of the streaming server. The host is kept, the port is not.
	addressForm = regexp.MustCompile(`(\b(?:\d{1,3}\.){3}\d{1,3}|\[::1?\]|\blocalhost):(\d{1,5})\b`)
	tokenForm   = regexp.MustCompile(`/(exec|attach|portforward)/([A-Za-z0-9_-]{8})([^A-Za-z0-9_-]|$)`)
	pidForm     = regexp.MustCompile(`/proc/(\d+)(/|$)`)
	timeForm    = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)`)
	// What a runtime measured and put into a message.
	usageForm = regexp.MustCompile(`\b(current|peak) usage: (\d+)`)
	// A temporary file of the runtime, as os.CreateTemp names it.
	temporaryForm = regexp.MustCompile(`/(runc-process|tmpmount|containerd-mount|ctrd-checkpoint)(\d+)`)
	// Where CRI-O holds a namespace of a pod open.
	pinnedForm = regexp.MustCompile(`/(?:net|ipc|uts|pid|user)ns/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b`)
	// A pointer that CRI-O prints where it means to print what is there.
	pointerForm = regexp.MustCompile(`\bmap\[\w+:(0x[0-9a-f]{8,16})\]`)
)

func newMask(paths map[string]string, startedNS int64) *mask {
	m := &mask{names: map[string]map[string]string{}, startedNS: startedNS}
	for label, path := range paths {
		m.paths = append(m.paths, labelledPath{path: path, label: "<" + label + ">"})
	}
	// The longest first, so that a path inside another keeps its own label.
	sort.Slice(m.paths, func(i, j int) bool {
		if len(m.paths[i].path) != len(m.paths[j].path) {
			return len(m.paths[i].path) > len(m.paths[j].path)
		}
		return m.paths[i].label < m.paths[j].label
	})
	return m
}

// name gives the numbered name of a value of a kind.
func (m *mask) name(kind, value string) string {
	known := m.names[kind]
	if known == nil {
		known = map[string]string{}
		m.names[kind] = known
	}
	if name, ok := known[value]; ok {
		return name
	}
	if m.peek {
		return kind + "#?"
	}
	name := fmt.Sprintf("%s#%d", kind, len(known)+1)
	known[value] = name
	return name
}

// text replaces everything in a text that is told by its form.
func (m *mask) text(text string) string {
	for _, known := range m.paths {
		text = strings.ReplaceAll(text, known.path, known.label)
	}
	if len(text) > longestText {
		return text
	}
	// Most texts are short and hold nothing of the kind.
	if len(text) >= shortestID {
		text = m.ids(text)
	}
	if strings.Contains(text, "/") {
		text = replaceGroup(tokenForm, text, 2, func(token string) string { return m.name("token", token) })
		text = replaceGroup(pidForm, text, 1, func(pid string) string { return m.name("pid", pid) })
		text = replaceGroup(temporaryForm, text, 2, func(number string) string { return m.name("temp", number) })
		text = replaceGroup(pinnedForm, text, 1, func(file string) string { return m.name("temp", file) })
	}
	if strings.Contains(text, ":") {
		text = replaceGroup(addressForm, text, 2, func(port string) string { return m.name("port", port) })
		text = replaceGroup(pointerForm, text, 1, func(string) string { return "pointer" })
		text = replaceGroup(usageForm, text, 2, func(string) string { return "measured" })
		text = m.times(text)
	}
	return text
}

func (m *mask) ids(text string) string {
	text = idForm.ReplaceAllStringFunc(text, func(found string) string {
		if strings.HasPrefix(found, "sha256:") {
			return found
		}
		return m.name("id", found)
	})
	return shortIDForm.ReplaceAllStringFunc(text, m.shortID)
}

// isID tells whether a text is an id and nothing else.
func isID(text string) bool { return len(text) == 64 && idForm.FindString(text) == text }

func (m *mask) times(text string) string {
	return timeForm.ReplaceAllStringFunc(text, func(found string) string {
		parsed, err := time.Parse(time.RFC3339Nano, found)
		if err != nil || parsed.Year() < 1970 {
			return found
		}
		return m.time(parsed.UnixNano())
	})
}

// shortID names the beginning of a known id by that id and its length.
func (m *mask) shortID(found string) string {
	for id, name := range m.names["id"] {
		if strings.HasPrefix(id, found) {
			return fmt.Sprintf("%s:%d", name, len(found))
		}
	}
	return found
}

// time replaces a time in ns since 1970 at which something happened. Zero and
// negative values are kept, a time outside the scenario says so.
func (m *mask) time(ns int64) string { return m.timeOf("", ns) }

// timeOf is the same for a time of one pod or container. Another may have an
// equal one by chance: CRI-O takes some from files, whose times are coarse.
func (m *mask) timeOf(object string, ns int64) string {
	switch {
	case ns <= 0:
		return strconv.FormatInt(ns, 10)
	case isCoarse(ns):
		return "second"
	}
	return m.period(ns) + m.name("time", object+"@"+strconv.FormatInt(ns, 10))
}

// isCoarse tells a time in whole seconds, as CRI-O and runc write some: which of
// these are equal, and whether one is before the scenario, is chance.
func isCoarse(ns int64) bool { return ns > 0 && ns%int64(time.Second) == 0 }

// sampleTime replaces the time in ns since 1970 of a measurement. Whether two
// replies share a sample is chance, so it has no number.
func (m *mask) sampleTime(ns int64) string {
	if ns <= 0 {
		return strconv.FormatInt(ns, 10)
	}
	return m.period(ns) + "sampled"
}

// period tells a time before the scenario or after the end of the step.
func (m *mask) period(ns int64) string {
	switch {
	case ns > m.endedNS:
		return "future "
	case ns < m.startedNS:
		return "earlier "
	default:
		return ""
	}
}

func replaceGroup(form *regexp.Regexp, text string, group int, replace func(string) string) string {
	var out strings.Builder
	last := 0
	for _, match := range form.FindAllStringSubmatchIndex(text, -1) {
		from, to := match[2*group], match[2*group+1]
		out.WriteString(text[last:from])
		out.WriteString(replace(text[from:to]))
		last = to
	}
	if last == 0 {
		return text
	}
	out.WriteString(text[last:])
	return out.String()
}
