package canon

import (
	"bytes"
	"encoding/json"
	"io"
	"sort"
	"strconv"
	"strings"
)

// Times in JSON numbers are told by size: ns since 1970, from 2017 to 2065.
const (
	earliestTimeNS = 1_500_000_000_000_000_000
	latestTimeNS   = 3_000_000_000_000_000_000
)

// json walks a JSON value of verbose info; false if it is not JSON. What lies
// between the values (white space) is compared as well.
func (w *walker) json(at place, text string) bool {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return false
	}
	if _, err := decoder.Token(); err != io.EOF {
		return false
	}
	w.jsonValue(at, "", value)
	w.emit(at.child("$layout"), strconv.Quote(layout(text)))
	return true
}

func (w *walker) jsonValue(at place, key string, value any) {
	switch value := value.(type) {
	case map[string]any:
		w.emit(at.child("$present"), "{}")
		names := make([]string, 0, len(value))
		for name := range value {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			w.jsonValue(at.child(w.mask.text(name)), name, value[name])
		}
	case []any:
		w.emit(at.child("$length"), strconv.Itoa(len(value)))
		if unorderedKeys[key] {
			sortTexts(value)
		}
		for i, element := range value {
			w.jsonValue(at.element(strconv.Itoa(i)), key, element)
		}
	case string:
		if strings.HasPrefix(key, "io.kubernetes.cri-o.") {
			if inner, ok := object(value); ok {
				w.jsonValue(at, key, inner)
				return
			}
		}
		w.emit(at, strconv.Quote(w.mask.text(value)))
	case json.Number:
		w.emit(at, w.jsonNumber(key, value))
	case bool:
		w.emit(at, strconv.FormatBool(value))
	default:
		w.emit(at, "null")
	}
}

// unorderedKeys are of lists of texts that CRI-O fills in random order.
var unorderedKeys = map[string]bool{"DisallowedAnnotations": true}

func sortTexts(list []any) {
	sort.SliceStable(list, func(i, j int) bool {
		a, _ := list[i].(string)
		b, _ := list[j].(string)
		return a < b
	})
}

// object reads a text that is a JSON object itself: one of the annotations in
// which CRI-O keeps what it knows, with their keys in random order.
func object(text string) (map[string]any, bool) {
	if !strings.HasPrefix(text, "{") {
		return nil, false
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value map[string]any
	if decoder.Decode(&value) != nil {
		return nil, false
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, false
	}
	return value, true
}

func (w *walker) jsonNumber(key string, number json.Number) string {
	integer, err := number.Int64()
	switch {
	case err != nil:
		return number.String()
	case integer > earliestTimeNS && integer < latestTimeNS:
		return w.mask.time(integer)
	case strings.EqualFold(key, "pid") && integer > 0:
		return w.mask.name("pid", number.String())
	default:
		return number.String()
	}
}

// layout is the JSON text with "v" for every key and value: punctuation and
// white space, which the walk over values does not see.
func layout(text string) string {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var gaps bytes.Buffer
	last := int64(0)
	for {
		token, err := decoder.Token()
		if err != nil {
			break
		}
		end := decoder.InputOffset()
		raw := text[last:end]
		gaps.WriteString(raw[:len(raw)-len(strings.TrimLeft(raw, " \t\r\n:,"))])
		if delim, ok := token.(json.Delim); ok {
			gaps.WriteString(delim.String())
		} else {
			gaps.WriteByte('v')
		}
		last = end
	}
	gaps.WriteString(text[last:])
	return gaps.String()
}
