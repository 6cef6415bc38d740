package precast

import (
	"bytes"
	"errors"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"precast/graph/pipelines"
)

func videoOf(count, frames, height, width int) *pipelines.Output {
	out := &pipelines.Output{Frames: frames, Images: testFrames(count*max(1, frames), height, width)}
	for i := range count {
		out.Params = append(out.Params, *testParams(fmt.Sprint("video ", i)))
	}
	return out
}

// tree lists the files below dir, those that begin with a dot included.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && path != dir {
			rel, _ := filepath.Rel(dir, path)
			if d.IsDir() {
				rel += "/"
			}
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

func TestVideoOutput(t *testing.T) {
	for _, c := range []struct {
		out           string
		count, frames int
		want          string
	}{
		{"v.png", 1, 3, "v.png"},
		{"v.PNG", 2, 3, "v-0.PNG v-1.PNG"},
		{"v.apng", 1, 2, "v.apng"},
		{"v.png", 2, 3, "v-0.png v-1.png"},
		{"v.png", 1, 1, "v.png"},
		{"f/", 1, 3, "f/ f/0000.png f/0001.png f/0002.png"},
		{"f/", 2, 2, "f/ f/0/ f/0/0000.png f/0/0001.png f/1/ f/1/0000.png f/1/0001.png"},
		{"f/", 1, 1, "f/ f/0000.png"},
		{"p/", 2, 0, "p/ p/0000.png p/0001.png"},
		{"p.png", 1, 0, "p.png"},
	} {
		dir := t.TempDir()
		out := filepath.Join(dir, filepath.Base(c.out))
		if strings.HasSuffix(c.out, "/") {
			out += "/"
		}
		o, err := OpenOutput(out, OutputOptions{Count: c.count, Frames: c.frames})
		if err != nil {
			t.Fatal(err)
		}
		video := videoOf(c.count, c.frames, 6, 10)
		paths, err := o.Write(video)
		if err != nil {
			t.Fatal(err)
		}
		if got := tree(t, dir); got != c.want {
			t.Errorf("%s, %d of %d frames: %s, wanted %s", c.out, c.count, c.frames, got, c.want)
		}
		each := len(video.Images) / len(paths)
		for i, p := range paths {
			data, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			want := video.Images[i*each : (i+1)*each]
			params, err := ReadPNGParams(bytes.NewReader(data))
			switch {
			case each > 1:
				got, _ := readAPNG(t, data)
				for k := range want {
					samePixels(t, p, got[k], want[k])
				}
			default:
				if bytes.Contains(data, []byte("acTL")) {
					t.Errorf("%s: a single picture is an animation", p)
				}
				got, err := png.Decode(bytes.NewReader(data))
				if err != nil {
					t.Fatal(err)
				}
				samePixels(t, p, got, want[0])
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint("video ", i*each/max(1, c.frames)); params.Prompt != want {
				t.Errorf("%s: prompt %q, wanted %q", p, params.Prompt, want)
			}
			if fps, ok := params.Extra["fps"]; ok != (c.frames > 0) || ok && fps != float64(DefaultFPS) {
				t.Errorf("%s: fps %v", p, fps)
			}
		}
	}
}

// TestVideoOutputRefused holds that what can't be written is said before any work and leaves nothing.
func TestVideoOutputRefused(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, c := range []struct {
		out    string
		o      OutputOptions
		before []string
		want   string
	}{
		{"v.gif", OutputOptions{Count: 1, Frames: 3}, nil, ".mp4 or .png"},
		{"v", OutputOptions{Count: 1, Frames: 3}, nil, "folder with a / at the end"},
		{"v.webp", OutputOptions{Count: 1}, nil, "only .png is written"},
		{"v.webp", OutputOptions{Count: 1, Frames: 3}, nil, ".mp4 or .png"},
		{"v.mp4", OutputOptions{Count: 1, Frames: 3}, nil, "no ffmpeg is found in PATH; a name that ends in .png"},
		{"v.png", OutputOptions{Count: 1, FPS: 8}, nil, "makes pictures, not a video"},
		{"v.png", OutputOptions{Count: 1, Frames: 3, FPS: -1}, nil, "fps: found -1"},
		{"v.png", OutputOptions{Count: 1, Frames: 3, FPS: 1e6}, nil, "fps: found 1e+06"},
		{"f/", OutputOptions{Count: 1, Frames: 2}, []string{"f/0002.png"}, "holds 0002.png, a frame that would stay behind the 2 of this video"},
		{"f/", OutputOptions{Count: 2, Frames: 2}, []string{"f/1"}, "can't be made"},
		{"no/v.png", OutputOptions{Count: 1, Frames: 2}, nil, "no such file or directory"},
	} {
		dir := t.TempDir()
		for _, name := range c.before {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		was := tree(t, dir)
		o, err := OpenOutput(dir+"/"+c.out, c.o)
		var user *UserError
		if err == nil || !errors.As(err, &user) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, wanted %q", c.out, err, c.want)
		}
		if o != nil && err == nil {
			o.Abort()
		}
		if got := tree(t, dir); got != was {
			t.Errorf("%s: left %q, was %q", c.out, got, was)
		}
	}
}

// fakeFFmpeg puts a program in front of PATH that answers -encoders and then does what mode says.
func fakeFFmpeg(t *testing.T, mode string) {
	t.Helper()
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("no /bin/sh")
	}
	dir := t.TempDir()
	script := `#!/bin/sh
if [ "$2" = -encoders ]; then
	[ ` + mode + ` = old ] && { echo "Unrecognized option" >&2; exit 1; }
	[ ` + mode + ` = lgpl ] || echo " V....D libx264 libx264 H.264"
	exit 0
fi
for file; do :; done
echo "$@" > ` + dir + `/arguments
case ` + mode + ` in
fails) cat > /dev/null; echo "Error opening encoder" >&2; echo "Conversion failed!" >&2; exit 187 ;;
early) echo "Unknown option" >&2; exit 8 ;;
full) head -c 1000 > /dev/null; echo "$file: No space left on device" >&2; exit 228 ;;
killed) head -c 1000 > "$file"; kill -9 $$ ;;
half) cat > /dev/null; printf '\0\0\0\020ftypisom\0\0\0\0\0\0\100\0mdat' > "$file" ;;
empty) cat > /dev/null ;;
good) cat > ` + dir + `/raw; printf '\0\0\0\010ftyp\0\0\0\010moov\0\0\0\010mdat' > "$file" ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "ffmpeg"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestMP4Failures(t *testing.T) {
	for mode, want := range map[string]string{
		"fails":  "ffmpeg: exit status 187: Error opening encoder; Conversion failed!",
		"early":  "ffmpeg: exit status 8: Unknown option",
		"full":   "No space left on device",
		"killed": "ffmpeg: signal: killed",
		"half":   `its file is not whole: the box "mdat"`,
		"empty":  "its file is not a whole MP4",
	} {
		t.Run(mode, func(t *testing.T) {
			fakeFFmpeg(t, mode)
			dir := t.TempDir()
			out := filepath.Join(dir, "v.mp4")
			if err := os.WriteFile(out, []byte("was there"), 0o600); err != nil {
				t.Fatal(err)
			}
			o, err := OpenOutput(out, OutputOptions{Count: 1, Frames: 9})
			if err != nil {
				t.Fatal(err)
			}
			// More than a pipe holds, so that ffmpeg's end is met while writing.
			_, err = o.Write(videoOf(1, 9, 256, 256))
			var user *UserError
			if !errors.As(err, &user) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `v.mp4" can't be written`) {
				t.Errorf("%v, wanted %q", err, want)
			}
			if data, _ := os.ReadFile(out); string(data) != "was there" || tree(t, dir) != "v.mp4" {
				t.Errorf("left %q, %q", tree(t, dir), data)
			}
		})
	}
	for mode, want := range map[string]string{"old": "-encoders fails: exit status 1: Unrecognized option", "lgpl": "has no encoder libx264"} {
		t.Run(mode, func(t *testing.T) {
			fakeFFmpeg(t, mode)
			dir := t.TempDir()
			if _, err := OpenOutput(filepath.Join(dir, "v.mp4"), OutputOptions{Count: 1, Frames: 9}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, wanted %q", err, want)
			}
			if got := tree(t, dir); got != "" {
				t.Errorf("left %q", got)
			}
		})
	}
}

// TestMP4Input holds what ffmpeg is given: an odd side's last row and column twice, the command's arguments.
func TestMP4Input(t *testing.T) {
	fakeFFmpeg(t, "good")
	dir, _, _ := strings.Cut(os.Getenv("PATH"), string(os.PathListSeparator))
	o, err := OpenOutput(filepath.Join(t.TempDir(), "v.mp4"), OutputOptions{Count: 1, Frames: 2, FPS: 23.976})
	if err != nil {
		t.Fatal(err)
	}
	video := videoOf(1, 2, 3, 5)
	if _, err := o.Write(video); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "raw"))
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) != 2*4*6*3 {
		t.Fatalf("%d bytes", len(raw))
	}
	for at, v := range raw {
		c, x, y, f := at%3, at/3%6, at/18%4, at/72
		if want := video.Images[f].RGB[3*(min(y, 2)*5+min(x, 4))+c]; v != want {
			t.Fatalf("frame %d row %d column %d: %d, wanted %d", f, y, x, v, want)
		}
	}
	args, err := os.ReadFile(filepath.Join(dir, "arguments"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-video_size 6x4 -framerate 23.976 -i pipe:0", "-c:v libx264", "-pix_fmt yuv420p", `comment={"prompt":"video 0"`, "-f mp4 /"} {
		if !strings.Contains(string(args), want) {
			t.Errorf("%q is not in %s", want, args)
		}
	}
}

// TestMP4 writes a video with the ffmpeg of this machine and reads it back.
func TestMP4(t *testing.T) {
	if _, err := findFFmpeg(); err != nil {
		t.Skip(err)
	}
	out := filepath.Join(t.TempDir(), "v.mp4")
	o, err := OpenOutput(out, OutputOptions{Count: 2, Frames: 5, FPS: 12})
	if err != nil {
		t.Fatal(err)
	}
	const height, width = 63, 97
	video := &pipelines.Output{Frames: 5, Params: []pipelines.Params{*testParams("a fox"), *testParams("a hare")}}
	for k := range 10 {
		f := pipelines.Image{Height: height, Width: width, RGB: make([]byte, 3*height*width)}
		for at := range f.RGB {
			// Smooth, and below 256: 4:2:0 has one colour for 2x2 pixels, so edges of colour can't come back. Half the frames are of one colour,
			// which a wrong conversion changes.
			f.RGB[at] = byte(20 + (at/3%width)*(1-at%3/2) + at/3/width/2 + 5*k)
			if k%2 == 1 {
				f.RGB[at] = []byte{200, 90, 40}[(at%3+k)%3]
			}
		}
		video.Images = append(video.Images, f)
	}
	paths, err := o.Write(video)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range paths {
		raw, err := exec.Command("ffmpeg", "-loglevel", "error", "-i", p, "-vf", "scale=in_color_matrix=bt709", "-f", "rawvideo", "-pix_fmt", "rgb24", "-").Output()
		if err != nil {
			t.Fatal(err)
		}
		frame := 3 * (height + 1) * (width + 1)
		if len(raw) != 5*frame {
			t.Fatalf("%s: %d bytes, wanted 5 frames of %d", p, len(raw), frame)
		}
		var sum float64
		for k := range 5 {
			for y := range height {
				for x := range 3 * width {
					d := float64(raw[k*frame+y*3*(width+1)+x]) - float64(video.Images[5*i+k].RGB[y*3*width+x])
					sum += d * d
				}
			}
		}
		if mse := sum / (5 * 3 * height * width); mse > 5 {
			t.Errorf("%s: mean square error %g", p, mse)
		}
		meta, err := exec.Command("ffmpeg", "-loglevel", "error", "-i", p, "-f", "ffmetadata", "-").Output()
		if err != nil || !strings.Contains(string(meta), []string{"a fox", "a hare"}[i]) {
			t.Errorf("%s: metadata %s, %v", p, meta, err)
		}
		about, _ := exec.Command("ffmpeg", "-hide_banner", "-i", p).CombinedOutput()
		for _, want := range []string{"h264", "yuv420p(tv, bt709", "98x64", "12 fps"} {
			if !strings.Contains(string(about), want) {
				t.Errorf("%s: %q is not in %s", p, want, about)
			}
		}
	}
}
