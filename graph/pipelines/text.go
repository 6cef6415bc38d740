package pipelines

import (
	"context"
	"fmt"

	"precast/graph"
	"precast/graph/tokenizer"
)

// textEncoder runs one tokenizer and the text encoder behind it, a prompt at a time: one program serves any number of prompts.
type textEncoder struct {
	component string // "text_encoder_2"
	tok       tokenizer.Tokenizer
	length    int
	// vocab is the number of rows of the encoder's embedding.
	vocab int
	// limit names what sets the length, for the warning about a prompt that is cut.
	limit string
}

// tokens turns a prompt into as many ids as the encoder takes.
func (e *textEncoder) tokens(text string) (tokenizer.Encoding, error) {
	enc, err := e.tok.Encode(text, tokenizer.Options{MaxLength: e.length, Pad: true, Truncate: true, AddSpecial: true})
	if err != nil {
		return tokenizer.Encoding{}, fmt.Errorf("%s: %w", e.component, err)
	}
	for _, id := range enc.IDs {
		if int(id) >= e.vocab {
			return tokenizer.Encoding{}, fmt.Errorf("%s: the tokenizer gives id %d, but the embedding has %d rows (vocab_size); tokenizer and text encoder do not belong together", e.component, id, e.vocab)
		}
	}
	return enc, nil
}

// check tokenizes texts, so that what can't be encoded is found before any work.
func (e *textEncoder) check(lists ...[]string) error {
	for _, texts := range lists {
		for _, text := range texts {
			if _, err := e.tokens(text); err != nil {
				return err
			}
		}
	}
	return nil
}

// encode runs the program on one prompt and returns the results by name, in float32.
func (e *textEncoder) encode(ctx context.Context, ex Executor, req *Request, p *Program, text string) (map[string][]float32, error) {
	enc, err := e.tokens(text)
	if err != nil {
		return nil, err
	}
	if enc.Cut != "" {
		req.warn("the prompt is longer than %s: this part of it is not used: %q", e.limit, enc.Cut)
	}
	ids := HostTensor{Shape: shape(int32Type, 1, e.length), Data: int32Bytes(enc.IDs)}
	req.observe(e.component+"/in/input_ids", ids)
	in, err := ex.Put(ids.Shape, ids.Data)
	if err != nil {
		return nil, err
	}
	defer in.Free()
	out, err := ex.Run(ctx, p, map[string]Tensor{"input_ids": in})
	if err != nil {
		return nil, err
	}
	got := map[string][]float32{}
	for _, name := range p.Outputs {
		if got[name], err = readFloats(ctx, out[name], e.component, "its "+name); err != nil {
			break
		}
		req.observe(e.component+"/out/"+name, hostFloats(got[name], out[name].Shape().Dimensions...))
	}
	for _, t := range out {
		t.Free()
	}
	return got, err
}

// batch uploads one row a picture: row k belongs to prompt k/perPrompt, in dtype.
func batch(ex Executor, rows [][]float32, perPrompt int, dtype graph.DType, dims ...int) (Tensor, error) {
	var all []float32
	for _, r := range rows {
		for range perPrompt {
			all = append(all, r...)
		}
	}
	return put(ex, dtype, all, append([]int{len(rows) * perPrompt}, dims...)...)
}

// pictures runs the loop and decodes what it gives, letting go of each component behind it.
func (l *loop) pictures(ctx context.Context, unpack, decoder *Program, s Sizes) ([]Image, error) {
	latents, err := l.run(ctx)
	if err != nil {
		return nil, err
	}
	l.ex.Release(l.component)
	images, err := decodeImages(ctx, l.ex, l.req, unpack, decoder, latents, s.Batch, s.Height, s.Width)
	l.ex.Release(decoder.Component)
	return images, err
}

// decodeImages runs the decoder on one picture's latents after the other.
func decodeImages(ctx context.Context, ex Executor, req *Request, unpack, decoder *Program, latents Tensor, pictures, h, w int) ([]Image, error) {
	out, err := ex.Run(ctx, unpack, map[string]Tensor{"latents": latents})
	latents.Free()
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, t := range out {
			t.Free()
		}
	}()
	var images []Image
	for k := range pictures {
		z := out[fmt.Sprintf("latents%d", k)]
		if err := observeTensor(ctx, req, "vae_in", z); err != nil {
			return nil, err
		}
		res, err := ex.Run(ctx, decoder, map[string]Tensor{"latents": z})
		if err != nil {
			return nil, err
		}
		z.Free()
		v, err := readFloats(ctx, res["sample"], "vae", "the decoded picture's values")
		res["sample"].Free()
		if err != nil {
			return nil, err
		}
		req.observe("vae_out", hostFloats(v, 1, 3, h, w))
		images = append(images, toImage(v, h, w))
	}
	return images, nil
}
