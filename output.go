package precast

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"precast/graph/pipelines"
)

// DefaultFPS is the number of frames a second of a video whose pipeline names none: that of diffusers' examples for Wan.
const DefaultFPS = 16

// OutputOptions say what is going to be written.
type OutputOptions struct {
	// Count is the number of pictures or videos.
	Count int
	// Frames is the length of each video; 0 for pictures.
	Frames int
	// FPS is the number of frames a second; 0 takes the pipeline's, else DefaultFPS.
	FPS float64
}

// inFolder says that out names a folder: it ends with a separator, or is one.
func inFolder(out string) bool {
	info, err := os.Stat(out)
	return strings.HasSuffix(out, "/") || strings.HasSuffix(out, string(filepath.Separator)) || (err == nil && info.IsDir())
}

// OutputPaths are the files that pictures or videos go to. Pictures: "FILE" for one, "FILE-0.png" ... for several, "0000.png" ... in a
// folder (a path that ends with a separator or is one). Videos: "FILE" and "FILE-0.mp4" ... likewise; in a folder each frame is a file
// "0000.png" ..., and several videos have a folder "0", "1" ... each.
func OutputPaths(out string, o OutputOptions) []string {
	var paths []string
	for i := range o.Count {
		ext := filepath.Ext(out)
		switch folder := inFolder(out); {
		case folder && o.Frames > 0:
			dir := out
			if o.Count > 1 {
				dir = filepath.Join(out, fmt.Sprint(i))
			}
			for f := range o.Frames {
				paths = append(paths, filepath.Join(dir, fmt.Sprintf("%04d.png", f)))
			}
		case folder:
			paths = append(paths, filepath.Join(out, fmt.Sprintf("%04d.png", i)))
		case o.Count == 1:
			paths = append(paths, out)
		default:
			paths = append(paths, fmt.Sprintf("%s-%d%s", strings.TrimSuffix(out, ext), i, ext))
		}
	}
	return paths
}

// Output is a set of files that appear together or not at all.
type Output struct {
	opts  OutputOptions
	paths []string
	temps []*os.File
	made  []string // folders that OpenOutput made, each before those in it
	// encode writes one file of perFile frames.
	encode  func(f *os.File, frames []pipelines.Image, fps float64, p *pipelines.Params) error
	perFile int
}

// OpenOutput checks that the files can be written, before any work, by making their temporary neighbours. Pictures are written as PNG.
// A video is written as MP4 (H.264) where ffmpeg is found, as animated PNG (lossless), or as a folder of PNGs.
func OpenOutput(out string, opts OutputOptions) (_ *Output, err error) {
	o := &Output{opts: opts, paths: OutputPaths(out, opts), perFile: 1}
	defer func() {
		if err != nil {
			o.Abort()
		}
	}()
	if err := o.choose(out); err != nil {
		return nil, err
	}
	folders := inFolder(out)
	for _, p := range o.paths {
		if info, err := os.Stat(p); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
			return nil, userErrorf("output %q is a device or a pipe; name a file", p)
		} else if err == nil && info.IsDir() {
			return nil, userErrorf("output %q is a folder; name a file in it, or end the path with /", p)
		}
		dir := filepath.Dir(p)
		if folders {
			if err := o.makeFolder(dir); err != nil {
				return nil, userErrorf("output folder %q can't be made: %w", dir, err)
			}
		}
		f, err := os.CreateTemp(dir, ".precast-*"+strings.ToLower(filepath.Ext(p)))
		if err != nil {
			return nil, userErrorf("output %q can't be written: %w", p, withoutPath(err))
		}
		o.temps = append(o.temps, f)
	}
	if folders && opts.Frames > 0 {
		return o, o.checkOtherFrames()
	}
	return o, nil
}

// choose picks the encoder by the path's extension.
func (o *Output) choose(out string) error {
	if f := o.opts.FPS; f != 0 && o.opts.Frames == 0 {
		return userErrorf("fps: found %g, but this pipeline makes pictures, not a video; leave it out", f)
	} else if !(f >= 0 && f <= 1000) {
		return userErrorf("fps: found %g, wanted a number of frames a second above 0 and up to 1000", f)
	}
	ext := strings.ToLower(filepath.Ext(out))
	picture := func(f *os.File, frames []pipelines.Image, _ float64, p *pipelines.Params) error {
		return EncodePNG(f, frames[0], p)
	}
	switch {
	case inFolder(out), o.opts.Frames <= 1 && ext == ".png":
		o.encode = picture
	case o.opts.Frames == 0:
		return userErrorf("output %q: only .png is written; name a file that ends in .png, or a folder with a / at the end", out)
	case ext == ".png" || ext == ".apng":
		o.encode, o.perFile = func(f *os.File, frames []pipelines.Image, fps float64, p *pipelines.Params) error {
			return EncodeAPNG(f, frames, fps, p)
		}, o.opts.Frames
	case ext == ".mp4":
		ff, err := findFFmpeg()
		if err != nil {
			return userErrorf("output %q: an MP4 is made by ffmpeg, and %w; "+
				"a name that ends in .png (animated, lossless) or a folder (DIR/) for a PNG a frame needs none", out, err)
		}
		o.encode, o.perFile = ff.encode, o.opts.Frames
	default:
		return userErrorf("output %q: a video is written to a name that ends in .mp4 or .png (animated), or to a folder with a / at the end", out)
	}
	return nil
}

// makeFolder makes a folder and notes which were not there.
func (o *Output) makeFolder(dir string) error {
	var missing []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append([]string{d}, missing...)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	o.made = append(o.made, missing...)
	return nil
}

var frameName = regexp.MustCompile(`^\d{4,}\.png$`)

// checkOtherFrames refuses a folder with frames that this video would leave as they are: they would be taken for its end.
func (o *Output) checkOtherFrames() error {
	own, seen := map[string]bool{}, map[string]bool{}
	for _, p := range o.paths {
		own[p] = true
	}
	for _, p := range o.paths {
		dir := filepath.Dir(p)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		entries, err := os.ReadDir(dir)
		if err != nil {
			return userErrorf("output folder %q can't be read: %w", dir, err)
		}
		for _, e := range entries {
			if other := filepath.Join(dir, e.Name()); frameName.MatchString(e.Name()) && !own[other] {
				return userErrorf("output folder %q holds %s, a frame that would stay behind the %d of this video; remove it or name a new folder",
					dir, e.Name(), o.opts.Frames)
			}
		}
	}
	return nil
}

// withoutPath drops the name of a temporary file from an error of the system: the user knows the file by another.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Write writes the pictures or videos and gives them their names. An error leaves nothing behind.
func (o *Output) Write(out *pipelines.Output) ([]string, error) {
	defer o.Abort()
	frames := max(1, o.opts.Frames)
	if len(out.Images) != o.opts.Count*frames || out.Frames != o.opts.Frames {
		return nil, &InternalError{Phase: "write", Program: "output", Err: fmt.Errorf("%d pictures, videos of %d frames, for %d outputs of %d frames",
			len(out.Images), out.Frames, o.opts.Count, o.opts.Frames)}
	}
	if len(out.Params) != o.opts.Count {
		return nil, &InternalError{Phase: "write", Program: "output", Err: fmt.Errorf("parameters of %d pictures or videos for %d", len(out.Params), o.opts.Count)}
	}
	fps := o.opts.FPS
	if fps == 0 {
		fps = out.FPS
	}
	if fps == 0 {
		fps = DefaultFPS
	}
	for i, f := range o.temps {
		first := i * o.perFile
		params := out.Params[first/frames]
		if o.opts.Frames > 0 {
			params = withExtra(params, "fps", fps)
		}
		err := o.encode(f, out.Images[first:first+o.perFile], fps, &params)
		if err == nil {
			err = f.Chmod(0o644)
		}
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return nil, userErrorf("output %q can't be written: %w", o.paths[i], withoutPath(err))
		}
	}
	for i, f := range o.temps {
		if err := os.Rename(f.Name(), o.paths[i]); err != nil {
			for _, done := range o.paths[:i] {
				_ = os.Remove(done)
			}
			return nil, userErrorf("output %q can't be written: %w", o.paths[i], err)
		}
	}
	o.temps, o.made = nil, nil
	return o.paths, nil
}

// withExtra is p with one more parameter; p keeps its own.
func withExtra(p Params, key string, value any) Params {
	extra := map[string]any{}
	maps.Copy(extra, p.Extra)
	extra[key] = value
	p.Extra = extra
	return p
}

// Abort removes what OpenOutput made; after Write it does nothing.
func (o *Output) Abort() {
	for _, f := range o.temps {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}
	o.temps = nil
	for i := len(o.made) - 1; i >= 0; i-- {
		_ = os.Remove(o.made[i]) // only where it is empty
	}
	o.made = nil
}
