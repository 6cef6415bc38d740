package precast

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"precast/graph/pipelines"
)

// ffmpeg is the program that makes MP4 files.
type ffmpeg struct{ path string }

// findFFmpeg looks for ffmpeg in PATH and makes sure that it has the encoder.
func findFFmpeg() (*ffmpeg, error) {
	path, err := exec.LookPath("ffmpeg")
	if err != nil {
		return nil, errors.New("no ffmpeg is found in PATH")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-hide_banner", "-encoders")
	cmd.WaitDelay = time.Second
	var stderr tail
	cmd.Stderr = &stderr
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s -encoders fails: %w%s", path, err, stderr.clause())
	}
	if !slices.Contains(strings.Fields(string(list)), "libx264") {
		return nil, fmt.Errorf("%s has no encoder libx264 for H.264", path)
	}
	return &ffmpeg{path}, nil
}

// arguments are those that ffmpeg is called with: raw RGB from standard input to H.264 with 4:2:0 colours, which every player takes. Colours
// are converted by BT.709 and marked so; the index is put first, so that a player may start before it has the whole file.
func (f *ffmpeg) arguments(file string, width, height int, fps float64, comment string) []string {
	args := []string{
		"-hide_banner", "-loglevel", "error", "-y",
		"-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", fmt.Sprintf("%dx%d", width, height), "-framerate", fmt.Sprint(fps), "-i", "pipe:0",
		"-an", "-vf", "scale=out_color_matrix=bt709:out_range=tv", "-c:v", "libx264", "-preset", "medium", "-crf", "17", "-pix_fmt", "yuv420p",
		"-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709", "-color_range", "tv",
	}
	// The system takes arguments of up to 128 KB.
	if comment != "" && len(comment) < 100<<10 {
		args = append(args, "-metadata", "comment="+comment)
	}
	return append(args, "-movflags", "+faststart", "-f", "mp4", file)
}

// encode writes frames to file as an MP4. An odd side gets its last row or column twice: 4:2:0 has one colour for 2x2 pixels.
func (f *ffmpeg) encode(file *os.File, frames []pipelines.Image, fps float64, params *pipelines.Params) error {
	if err := checkFrames(frames, fps); err != nil {
		return err
	}
	comment, err := json.Marshal(params)
	if err != nil {
		return err
	}
	width, height := frames[0].Width+frames[0].Width%2, frames[0].Height+frames[0].Height%2
	cmd := exec.Command(f.path, f.arguments(file.Name(), width, height, fps, string(comment))...)
	cmd.WaitDelay = 10 * time.Second
	var stderr tail
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("ffmpeg: %w", err)
	}
	var sent error
	for _, img := range frames {
		if _, sent = in.Write(evenSides(img)); sent != nil {
			break
		}
	}
	sent = errors.Join(sent, in.Close())
	// How ffmpeg ended says more than that it stopped reading.
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("ffmpeg: %w%s", err, stderr.clause())
	}
	if sent != nil {
		return fmt.Errorf("ffmpeg did not read all frames: %w%s", sent, stderr.clause())
	}
	if err := checkMP4(file); err != nil {
		return fmt.Errorf("ffmpeg said nothing of a fault, but %w%s", err, stderr.clause())
	}
	return nil
}

// evenSides is the picture's pixels with an odd side's last row or column repeated.
func evenSides(img pipelines.Image) []byte {
	rgb, row := img.RGB, 3*img.Width
	if img.Width%2 == 1 {
		wide := make([]byte, 0, (row+3)*img.Height)
		for y := range img.Height {
			line := rgb[y*row : (y+1)*row]
			wide = append(append(wide, line...), line[row-3:]...)
		}
		rgb, row = wide, row+3
	}
	if img.Height%2 == 1 {
		rgb = append(slices.Clone(rgb), rgb[len(rgb)-row:]...)
	}
	return rgb
}

// checkMP4 walks the file's boxes (ISO/IEC 14496-12, section 4.2): they must end where the file ends and include the index and the data. A disk that ran
// full leaves a file of which that isn't true, whatever the encoder's exit code was.
func checkMP4(f *os.File) error {
	info, err := os.Stat(f.Name()) // ffmpeg may have replaced the file
	if err != nil {
		return err
	}
	r, err := os.Open(f.Name())
	if err != nil {
		return err
	}
	defer r.Close()
	seen := map[string]bool{}
	for at := int64(0); at < info.Size(); {
		var head [16]byte
		n, err := r.ReadAt(head[:], at)
		if n < 8 {
			return fmt.Errorf("its file ends within a box: %w", err)
		}
		size := int64(binary.BigEndian.Uint32(head[:4]))
		if size == 1 && n == 16 {
			size = int64(binary.BigEndian.Uint64(head[8:]))
		}
		if size < 8 || size > info.Size()-at {
			return fmt.Errorf("its file is not whole: the box %q at byte %d has %d bytes, and the file ends after %d", head[4:8], at, size, info.Size())
		}
		seen[string(head[4:8])] = true
		at += size
	}
	if !seen["ftyp"] || !seen["moov"] || !seen["mdat"] {
		return errors.New("its file is not a whole MP4")
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(b []byte) (int, error) {
	const most = 4096
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-most):]
	return len(b), nil
}

// clause is the text as the end of an error message, on one line.
func (t *tail) clause() string {
	text := strings.Join(strings.FieldsFunc(string(bytes.TrimSpace(bytes.ToValidUTF8(t.b, nil))), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if text == "" {
		return ""
	}
	return ": " + text
}

var _ io.Writer = (*tail)(nil)
