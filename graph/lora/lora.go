// Package lora reads LoRA files and adds them to a checkpoint's weights while these are loaded.
//
// A LoRA gives a linear layer or a convolution with the weight W of shape [out, in, ...] two factors, down of shape [rank, in, ...] and up of
// shape [out, rank], and means W + scale * alpha / rank * up down (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021). Here that sum
// takes the place of W before any program sees it, so programs know nothing of LoRAs and none is compiled anew for one.
//
// The files name the layers in several spellings, see keys.go and names.go. A key that names no layer of the checkpoint is an error.
// diffusers 0.42.1 is the oracle (loaders/lora_pipeline.py, loaders/lora_conversion_utils.py, loaders/peft.py) with peft's merge
// (tuners/lora/layer.py). Where diffusers leaves keys of a file out with a warning, this package adds them or refuses the file.
package lora

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"precast/graph/checkpoint"
)

// Spec is a LoRA file and how strongly it applies.
type Spec struct {
	Path string
	// Scale multiplies the whole update; 1 is what the file was trained for.
	Scale float64
}

// ParseSpec reads FILE[:SCALE]; the scale is 1 where none is given.
func ParseSpec(text string) (Spec, error) {
	s := Spec{Path: text, Scale: 1}
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		v, err := strconv.ParseFloat(text[i+1:], 64)
		// A colon may be part of a file's name.
		if _, missing := os.Stat(text); err == nil && missing != nil {
			s = Spec{Path: text[:i], Scale: v}
		} else if strings.HasSuffix(text[:i], ".safetensors") && missing != nil {
			return s, fmt.Errorf("lora: %q: found the scale %q, wanted a number, as in FILE:0.8", text, text[i+1:])
		}
	}
	if s.Path == "" {
		return s, fmt.Errorf("lora: %q: found no file, wanted FILE or FILE:SCALE", text)
	}
	if math.IsNaN(s.Scale) || math.IsInf(s.Scale, 0) {
		return s, fmt.Errorf("lora: %q: found the scale %g, wanted a finite number", text, s.Scale)
	}
	return s, nil
}

// Set is what a list of LoRAs adds to the weights of one checkpoint. A nil Set adds nothing. Its methods are safe for concurrent use, Close
// excepted.
type Set struct {
	files []*checkpoint.File
	// scales are those of the files.
	scales []float64
	// updates by component and stored key, in the order of the files.
	updates map[string]map[string][]*update
	notes   []string
}

// update is what one LoRA adds to one stored tensor.
type update struct {
	file, name string // for messages: the file, and the module as the file spells it
	down, up   checkpoint.Tensor
	rank       int
	// first is the row of up that belongs to the tensor's first row: one up may serve several tensors, one after the other.
	first int
	// swap says that the two halves of up's rows have changed places.
	swap bool
	// factor is scale * alpha / rank.
	factor float64
	// magnitude, where there is one, gives the rows the length that they have afterwards (DoRA).
	magnitude *checkpoint.Tensor
	// bias, where there is one, is all that is added: times factor, to a bias.
	bias *checkpoint.Tensor
}

// Open reads the headers of LoRA files, finds the checkpoint's tensors that each changes, and checks every key, shape, rank, alpha and value. The error
// lists all that does not fit. The tensors stay in the mapped files.
func Open(ck *checkpoint.Checkpoint, specs []Spec) (_ *Set, err error) {
	s := &Set{updates: map[string]map[string][]*update{}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	m, err := newModel(ck)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, spec := range specs {
		f, err := checkpoint.OpenFile(spec.Path)
		if err != nil {
			errs = append(errs, fmt.Errorf("lora: %w", err))
			continue
		}
		s.files, s.scales = append(s.files, f), append(s.scales, spec.Scale)
		if err := s.read(m, f, spec.Scale); err != nil {
			errs = append(errs, err)
		}
	}
	return s, errors.Join(errs...)
}

// Notes lists what was read otherwise than it stands in the files.
func (s *Set) Notes() []string {
	if s == nil {
		return nil
	}
	return slices.Clone(s.notes)
}

// Identity tells what the set adds from what others do: the files, see checkpoint.File.Identity, and their scales; empty for a nil Set.
func (s *Set) Identity() string {
	if s == nil {
		return ""
	}
	var list []string
	for i, f := range s.files {
		list = append(list, fmt.Sprintf("%s %v", f.Identity(), s.scales[i]))
	}
	return strings.Join(list, "\n")
}

// Touches tells whether a LoRA changes the component's tensor with that stored key.
func (s *Set) Touches(component, key string) bool {
	return s != nil && len(s.updates[component][key]) > 0
}

// Close unmaps the files.
func (s *Set) Close() error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// read adds one file's updates.
func (s *Set) read(m *model, f *checkpoint.File, scale float64) error {
	entries, faults := parseKeys(f)
	fail := func() error {
		return fmt.Errorf("lora: %s: %w", f.Path(), faults.err())
	}
	if faults.method != "" {
		return fail()
	}
	if len(entries) == 0 {
		return fmt.Errorf("lora: %s: found no key of a LoRA, such as MODULE.lora_A.weight or MODULE.lora_down.weight: this is no LoRA", f.Path())
	}
	adapters, err := readAdapters(m, f, entries)
	if err != nil {
		return fmt.Errorf("lora: %s: %w", f.Path(), err)
	}
	s.notes = append(s.notes, m.place(f, entries, &faults)...)
	for _, e := range entries {
		if len(e.places) == 0 {
			continue // reported, or left out
		}
		s.add(m, f, e, adapters, scale, &faults)
	}
	if faults.any() {
		return fail()
	}
	return nil
}

// add checks one module of a file and adds its updates.
func (s *Set) add(m *model, f *checkpoint.File, e *entry, adapters map[string]*adapter, scale float64, faults *faults) {
	switch {
	case e.down == nil && e.up == nil:
		faults.incomplete = append(faults.incomplete, fmt.Sprintf("%s: found %s but no factors", e.name, strings.Join(e.keys, ", ")))
		return
	case e.down == nil || e.up == nil:
		faults.incomplete = append(faults.incomplete, fmt.Sprintf("%s: found only %s, wanted both factors", e.name, strings.Join(e.keys, ", ")))
		return
	}
	bad := func(format string, args ...any) {
		faults.shapes = append(faults.shapes, e.name+": "+fmt.Sprintf(format, args...))
	}
	down, up := *e.down, *e.up
	if len(down.Shape) < 2 || len(up.Shape) < 2 {
		bad("found factors of shape %v and %v, wanted [rank, in] and [out, rank]", down.Shape, up.Shape)
		return
	}
	rank := down.Shape[0]
	if rank == 0 || up.Shape[1] != rank || up.Len() != up.Shape[0]*rank {
		bad("the ranks of the factors differ: the first has shape %v, the second %v; wanted [rank, in] and [out, rank]", down.Shape, up.Shape)
		return
	}
	for _, t := range []*checkpoint.Tensor{e.down, e.up, e.alpha, e.magnitude, e.bias} {
		if t != nil {
			if i := checkpoint.NonFinite(t.Bytes(), t.DType); i >= 0 {
				faults.values = append(faults.values, fmt.Sprintf("%s holds NaN or infinity at element %d", t.Key, i))
				return
			}
			if t != e.alpha && !isFloat(t.DType) {
				bad("%s is stored as %s, wanted a floating-point type", t.Key, t.DType)
				return
			}
		}
	}
	rows := 0
	for _, p := range e.places {
		rows += p.weight.Shape[0]
	}
	if up.Shape[0] != rows {
		if len(e.places) > 1 {
			bad("the second factor has %d rows, but %s have %d together", up.Shape[0], modulesOf(e.places), rows)
		} else {
			bad("the second factor has %d rows, but %s has shape %v", up.Shape[0], e.places[0], e.places[0].weight.Shape)
		}
		return
	}
	first := 0
	for _, p := range e.places {
		if !fits(down.Shape[1:], p.weight.Shape[1:]) {
			bad("the first factor has shape %v, but %s has shape %v", down.Shape, p, p.weight.Shape)
			return
		}
		factor, problem := factorOf(e, p, adapters[p.component], rank)
		if problem != "" {
			bad("%s", problem)
			return
		}
		u := update{file: f.Path(), name: e.name, down: down, up: up, rank: rank, first: first, swap: p.swap, factor: scale * factor}
		if e.magnitude != nil {
			if len(e.places) > 1 || e.magnitude.Len() != p.weight.Shape[0] {
				bad("the magnitude has shape %v, but %s has shape %v", e.magnitude.Shape, p, p.weight.Shape)
				return
			}
			u.magnitude = e.magnitude
		}
		s.put(p.component, p.weight.Key, &u)
		if e.bias != nil {
			b, ok := m.components[p.component].tensors[p.module+".bias"]
			if !ok {
				bad("found %s, but %s has no bias", e.bias.Key, p)
				return
			}
			if e.bias.Len() != rows || b.Len() != p.weight.Shape[0] {
				bad("%s has shape %v, but the bias of %s has shape %v", e.bias.Key, e.bias.Shape, p, b.Shape)
				return
			}
			s.put(p.component, b.Key, &update{file: u.file, name: u.name, bias: e.bias, first: first, swap: p.swap, factor: u.factor})
		}
		first += p.weight.Shape[0]
	}
}

func (s *Set) put(component, key string, u *update) {
	if s.updates[component] == nil {
		s.updates[component] = map[string][]*update{}
	}
	s.updates[component][key] = append(s.updates[component][key], u)
}

// fits compares dimensions, those of length 1 at the end left out: a 1x1 convolution is a linear layer.
func fits(a, b []int) bool {
	trim := func(d []int) []int {
		for len(d) > 1 && d[len(d)-1] == 1 {
			d = d[:len(d)-1]
		}
		return d
	}
	return slices.Equal(trim(a), trim(b))
}

// faults collects what is wrong with one file, by kind.
type faults struct {
	method     string
	class      string
	homeless   []string
	incomplete []string
	shapes     []string
	values     []string
}

func (f *faults) any() bool {
	return f.method != "" || f.class != "" || len(f.homeless)+len(f.incomplete)+len(f.shapes)+len(f.values) > 0
}

// err words all faults.
func (f *faults) err() error {
	if f.method != "" {
		return errors.New(f.method)
	}
	if f.class != "" {
		return errors.New(f.class)
	}
	var errs []error
	list := func(head string, items []string) {
		if len(items) > 0 {
			errs = append(errs, fmt.Errorf("%s (%d):\n  %s", head, len(items), strings.Join(items, "\n  ")))
		}
	}
	list("keys that name no layer of this checkpoint", f.homeless)
	list("layers without both factors", f.incomplete)
	list("layers that do not fit", f.shapes)
	list("values that are no numbers", f.values)
	return errors.Join(errs...)
}
