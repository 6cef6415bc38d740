package pipelines

import (
	"context"
	"fmt"
	"slices"

	"precast/graph/tokenizer"
	"precast/graph/trace"
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
	// render, where set, makes the text that is encoded, with its special tokens, of a prompt: a chat.
	render func(prompt string) (string, error)
}

// at is the encoder at a request's max_sequence_length.
func (e *textEncoder) at(length int) *textEncoder {
	own := *e
	own.length, own.limit = length, fmt.Sprintf("max_sequence_length, %d tokens", length)
	return &own
}

// tokens turns a prompt into as many ids as the encoder takes.
func (e *textEncoder) tokens(text string) (tokenizer.Encoding, error) {
	if e.render != nil {
		var err error
		if text, err = e.render(text); err != nil {
			return tokenizer.Encoding{}, fmt.Errorf("%s: %w", e.component, err)
		}
	}
	enc, err := e.tok.Encode(text, tokenizer.Options{MaxLength: e.length, Pad: true, Truncate: true, AddSpecial: e.render == nil})
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

// encode runs the program on one prompt (with its attention mask, where the program takes one) and returns the results by name, in float32.
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
	in := tensors{}
	defer in.free()
	if in["input_ids"], err = ex.Put(ids.Shape, ids.Data); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(p.Inputs, func(i trace.Input) bool { return i.Name == "attention_mask" }) {
		if in["attention_mask"], err = ex.Put(ids.Shape, int32Bytes(enc.Mask)); err != nil {
			return nil, err
		}
	}
	out, err := ex.Run(ctx, p, in)
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

// decodeImages unpacks latents, which it frees, and runs the decoder on one picture's latents after the other.
func decodeImages(ctx context.Context, ex Executor, req *Request, unpack, decoder *Program, latents Tensor, s Sizes) ([]Image, error) {
	return decodeImagesWith(ctx, ex, req, unpack, latents, s, func(z Tensor) ([]float32, error) {
		res, err := ex.Run(ctx, decoder, map[string]Tensor{"latents": z})
		if err != nil {
			return nil, err
		}
		z.Free()
		defer res["sample"].Free()
		return readFloats(ctx, res["sample"], "vae", "the decoded picture's values")
	})
}

// decodeImagesWith unpacks latents, which it frees, and decodes one picture's after the other: decode gives its planes [3, H, W].
func decodeImagesWith(ctx context.Context, ex Executor, req *Request, unpack *Program, latents Tensor, s Sizes, decode func(z Tensor) ([]float32, error)) ([]Image, error) {
	out, err := ex.Run(ctx, unpack, map[string]Tensor{"latents": latents})
	latents.Free()
	if err != nil {
		return nil, err
	}
	defer tensors(out).free()
	var images []Image
	for k := range s.Batch {
		z := out[fmt.Sprintf("latents%d", k)]
		if err := observeTensor(ctx, req, "vae_in", z); err != nil {
			return nil, err
		}
		v, err := decode(z)
		if err != nil {
			return nil, err
		}
		req.observe("vae_out", hostFloats(v, 1, 3, s.Height, s.Width))
		images = append(images, toImage(v, s.Height, s.Width))
	}
	return images, nil
}
