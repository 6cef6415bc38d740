package tests

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast"
)

// hostile are values of a request's field by its type.
func hostile(field reflect.StructField) []any {
	number := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, -1, 0, 1e-300}
	whole := []int{-1, math.MinInt, math.MaxInt, 1 << 40, 1<<31 + 8, 1_000_000, 0, 1, 7}
	var out []any
	switch field.Type {
	case reflect.TypeFor[int]():
		for _, v := range whole {
			out = append(out, v)
		}
	case reflect.TypeFor[float64]():
		for _, v := range number {
			out = append(out, v)
		}
	case reflect.TypeFor[*float64]():
		for _, v := range number {
			out = append(out, &v)
		}
	case reflect.TypeFor[[]float64]():
		for _, v := range number {
			out = append(out, []float64{v}, []float64{1, v, 0.5})
		}
		out = append(out, []float64{}, make([]float64, 200_000))
	case reflect.TypeFor[*[2]int]():
		for _, v := range whole {
			out = append(out, &[2]int{v, 64}, &[2]int{64, v})
		}
	case reflect.TypeFor[[]string]():
		out = append(out, []string{}, []string{"\xff\xfe"}, []string{"a", "b", "c"}, []string{"\x00"}, []string{strings.Repeat("long ", 20_000)}, []string{strings.Repeat("\u0301", 5000)}, make([]string, 5000))
	case reflect.TypeFor[string]():
		out = append(out, "one", "ONE", "three", "\xff\xfe", strings.Repeat("one", 1000))
	case reflect.TypeFor[bool]():
		out = append(out, true)
	case reflect.TypeFor[*precast.Image]():
		out = append(out, &precast.Image{}, &precast.Image{Height: -1, Width: -1}, &precast.Image{Height: 1 << 40, Width: 1 << 40}, &precast.Image{Height: math.MaxInt, Width: 2},
			&precast.Image{Height: 1, Width: 1, RGB: make([]byte, 3)}, &precast.Image{Height: 2, Width: 2, RGB: make([]byte, 3)})
	case reflect.TypeFor[*precast.HostTensor]():
		for _, s := range badShapes() {
			out = append(out, &s)
		}
	case reflect.TypeFor[precast.Embeds]():
		out = append(out, precast.Embeds{})
		for _, s := range badShapes() {
			out = append(out, precast.Embeds{"prompt_embeds": s}, precast.Embeds{"nonsense": s},
				precast.Embeds{"prompt_embeds": s, "negative_prompt_embeds": s, "pooled_prompt_embeds": s, "negative_pooled_prompt_embeds": s, "prompt_embeds_mask": s, "negative_prompt_embeds_mask": s})
		}
	}
	return out
}

// badShapes are tensors of zeros that no pipeline takes for latents or embeddings, and some whose data have another length than the shape says.
func badShapes() []precast.HostTensor {
	list := []precast.HostTensor{{}, floatTensor(), floatTensor(1), floatTensor(1, 1), floatTensor(1, 1, 1), floatTensor(1, 1, 1, 1), floatTensor(2, 3, 4, 5, 6), floatTensor(0, 3, 4), floatTensor(1, 0, 4)}
	short := floatTensor(1, 16, 32)
	short.Data = short.Data[:7]
	half := floatTensor(1, 16, 32)
	half.Shape.DType = dtypes.Float16
	return append(list, short, half, precast.HostTensor{Shape: shapes.Make(dtypes.Float32, 1, 1<<20, 1<<20)}, precast.HostTensor{Shape: shapes.Make(dtypes.Int32, 1, 4), Data: make([]byte, 16)})
}

// TestEveryPipelineBadRequests gives each field of a request values that it should not have, one at a time: an error that names the argument and comes
// before any work, or none. It takes neither memory nor time.
func TestEveryPipelineBadRequests(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		p := openPipeline(t, carriedModel(t, name), precast.Config{Backend: "go", NoCache: true})
		refused, fine := 0, 0
		for field := range reflect.TypeFor[precast.Request]().Fields() {
			for i, v := range hostile(field) {
				what := fmt.Sprintf("%s, value %d", field.Name, i)
				r := smallRequest(p.Class())
				reflect.ValueOf(r).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(v))
				if field.Name == "PromptEmbeds" {
					r.Prompt = nil
				}
				if field.Name == "Strength" {
					r.Image = &precast.Image{Height: 32, Width: 32, RGB: make([]byte, 3*32*32)}
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				err := p.Check(r)
				took := time.Since(start)
				runtime.ReadMemStats(&after)
				if n := after.TotalAlloc - before.TotalAlloc; n > 256<<20 {
					t.Errorf("%s: %d MB were allocated", what, n>>20)
				}
				if took > 5*time.Second {
					t.Errorf("%s: took %v", what, took)
				}
				if err == nil {
					fine++
					continue
				}
				refused++
				checkRefusal(t, what, field.Name, err)
				// What Check refuses, a run refuses, and makes nothing.
				if _, again := p.Generate(context.Background(), r); again == nil {
					t.Errorf("%s: a run takes what the check refuses", what)
				}
			}
		}
		// The product of prompts and pictures of each overflows to a small number.
		r := smallRequest(p.Class())
		r.Prompt, r.NumImagesPerPrompt = []string{"a", "b", "c"}, 6148914691236517206
		if err := p.Check(r); err == nil || !strings.Contains(err.Error(), "num_images_per_prompt: found 6148914691236517206, wanted 1 to 1024") {
			t.Errorf("a number of pictures that overflows: %v", err)
		}
		if c := p.Stats().Counts; c["trace"]+c["execute"] != 0 {
			t.Errorf("work was done: %v", c)
		}
		if refused < 50 || fine < 20 {
			t.Errorf("%d requests were refused and %d were not", refused, fine)
		}
	})
}

// checkRefusal asserts that an error about a request's field is one of the user's and names the argument as diffusers does.
func checkRefusal(t *testing.T, what, field string, err error) {
	t.Helper()
	text := err.Error()
	if _, ok := errors.AsType[*precast.InternalError](err); ok {
		t.Errorf("%s: the message says that it is our fault: %.500s", what, text)
	}
	for _, word := range []string{"BUG", "%!", "runtime error", "panic"} {
		if strings.Contains(text, word) {
			t.Errorf("%s: the message holds %q: %.500s", what, word, text)
		}
	}
	words := []string{argument(field)}
	switch field {
	case "Sigmas", "Timesteps", "NumInferenceSteps":
		words = append(words, "number of inference steps", "cannot run 1 steps")
	case "Prompt", "NumImagesPerPrompt":
		words = append(words, "pictures")
	case "Image":
		words = append(words, "strength") // its default
	}
	// Sizes that are too large are told by the memory that they need.
	words = append(words, "of memory is available")
	if !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) }) {
		t.Errorf("%s: the message has none of %q: %.500s", what, words, text)
	}
}

// argument is a field's name in diffusers: CFGTruncation is cfg_truncation.
func argument(field string) string {
	var b strings.Builder
	runes := []rune(field)
	for i, r := range runes {
		if i > 0 && (unicode.IsDigit(r) || unicode.IsUpper(r) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.ReplaceAll(b.String(), "cfgscale", "cfg_scale")
}

// TestEveryPipelineBadSizes gives each of the sizes to compile for values that it should not have: an error that names it, or none. Nothing is traced.
func TestEveryPipelineBadSizes(t *testing.T) {
	everyPipeline(t, func(t *testing.T, name string) {
		p := openPipeline(t, carriedModel(t, name), precast.Config{Backend: "go", NoCache: true})
		good, err := p.SizesFor(smallRequest(p.Class()))
		must(t, err)
		words := map[string]string{"Batch": "batch", "Height": "height", "Width": "width", "Frames": "num_frames", "MaxSequenceLength": "max_sequence_length"}
		for field := range reflect.TypeFor[precast.Sizes]().Fields() {
			if field.Type.Kind() != reflect.Int {
				continue
			}
			for _, v := range []int{-1, math.MinInt, math.MaxInt, 1 << 40, 1<<31 + 8} {
				s := good
				reflect.ValueOf(&s).Elem().FieldByIndex(field.Index).SetInt(int64(v))
				_, err := p.Compile(t.Context(), precast.CompileOptions{Shapes: []precast.Sizes{s}, CompileTo: "trace"})
				what := fmt.Sprintf("%s = %d", field.Name, v)
				if err == nil {
					t.Errorf("%s: it was traced", what)
					continue
				}
				if _, ok := errors.AsType[*precast.InternalError](err); ok || !strings.Contains(err.Error(), words[field.Name]) {
					t.Errorf("%s: the message does not name %s: %.300s", what, words[field.Name], err)
				}
			}
		}
		if n := p.Stats().Counts["trace"]; n != 0 {
			t.Errorf("%d programs were traced", n)
		}
	})
}
