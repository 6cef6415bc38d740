package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"precast/graph/checkpoint"
	"precast/graph/checkpoint/hub/hubtest"
)

// tiny is a model of the tests, and read the files of it that a pipeline reads.
const tiny = "../../../tests/testdata/tiny/sd15/model"

var read = []string{
	"model_index.json", "scheduler/scheduler_config.json", "text_encoder/config.json", "text_encoder/model.safetensors",
	"tokenizer/merges.txt", "tokenizer/special_tokens_map.json", "tokenizer/tokenizer_config.json", "tokenizer/vocab.json",
	"unet/config.json", "unet/diffusion_pytorch_model.safetensors", "vae/config.json", "vae/diffusion_pytorch_model.safetensors",
}

const (
	unet  = "unet/diffusion_pytorch_model.safetensors"
	vae   = "vae/diffusion_pytorch_model.safetensors"
	token = "hf_secret"
)

// start starts a hub with the model org/sd15, among whose files are many that are not read, and an empty cache.
func start(t *testing.T) (*hubtest.Server, *hubtest.Model) {
	t.Helper()
	s := hubtest.New()
	t.Cleanup(s.Close)
	m, err := s.AddFolder("org/sd15", tiny)
	if err != nil {
		t.Fatal(err)
	}
	files := m.Files
	for _, name := range []string{
		"README.md", ".gitattributes", "v1-5-pruned.safetensors", "v1-5-pruned.ckpt", "grid.png", "unet/diffusion_pytorch_model.bin", "unet/model.onnx",
		"unet/diffusion_flax_model.msgpack", "unet/diffusion_pytorch_model.fp16.safetensors", "unet/diffusion_pytorch_model.non_ema.safetensors",
		"safety_checker/config.json", "safety_checker/model.safetensors", "feature_extractor/preprocessor_config.json", "text_encoder/pytorch_model.bin",
		"tokenizer/readme.md", "unet/more/config.json",
	} {
		files[name] = []byte("not read: " + name)
	}
	index := map[string]any{}
	if err := json.Unmarshal(files["model_index.json"], &index); err != nil {
		t.Fatal(err)
	}
	index["safety_checker"] = []string{"stable_diffusion", "StableDiffusionSafetyChecker"}
	files["model_index.json"], _ = json.Marshal(index)
	setHub(t, s.URL, t.TempDir())
	return s, s.Add("org/sd15", files)
}

func setHub(t *testing.T, url, home string) {
	t.Helper()
	for _, v := range append(slices.Clone(Variables), "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH") {
		t.Setenv(v, "") // which has it put back afterwards
		os.Unsetenv(v)
	}
	t.Setenv("HF_ENDPOINT", url)
	t.Setenv("HF_HOME", home)
	pause := firstPause
	firstPause = time.Millisecond
	t.Cleanup(func() { firstPause = pause })
}

func skip(_, class string) bool { return strings.HasSuffix(class, "SafetyChecker") }

func fetch(t *testing.T, o Options) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if o.Skip == nil {
		o.Skip = skip
	}
	return Fetch(ctx, "org/sd15", o)
}

func mustFetch(t *testing.T, o Options) string {
	t.Helper()
	dir, err := fetch(t, o)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// filesIn lists the files below dir that can be read, by path.
func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		list = append(list, filepath.ToSlash(rel))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return list
}

// whole checks that the snapshot has what is read and nothing else, each file with the content that the hub has.
func whole(t *testing.T, dir string, m *hubtest.Model) {
	t.Helper()
	if got := filesIn(t, dir); !slices.Equal(got, read) {
		t.Errorf("the snapshot has %v, wanted %v", got, read)
	}
	for _, f := range read {
		if data, err := os.ReadFile(filepath.Join(dir, f)); err != nil || !bytes.Equal(data, m.Files[f]) {
			t.Errorf("%s: %d bytes, wanted %d: %v", f, len(data), len(m.Files[f]), err)
		}
	}
	store := filepath.Dir(filepath.Dir(dir))
	for _, f := range filesIn(t, store) {
		if strings.HasSuffix(f, ".incomplete") || strings.HasSuffix(f, ".tmp") {
			t.Errorf("%s was left", f)
		}
	}
}

func TestFetch(t *testing.T) {
	s, m := start(t)
	m.Token = token
	t.Setenv("HF_TOKEN", " "+token+"\n")
	var last, most int64
	dir := mustFetch(t, Options{Progress: func(done, total int64) { last, most = done, total }})
	whole(t, dir, m)
	cache := filepath.Join(os.Getenv("HF_HOME"), "hub")
	if want := filepath.Join(cache, "models--org--sd15", "snapshots", m.Commit); dir != want {
		t.Errorf("%s, wanted %s", dir, want)
	}
	var sum int64
	for _, f := range read {
		sum += int64(len(m.Files[f]))
	}
	if last != sum || most != sum {
		t.Errorf("progress ended at %d of %d, wanted %d", last, most, sum)
	}
	if ref, err := os.ReadFile(filepath.Join(cache, "models--org--sd15", "refs", "main")); err != nil || string(ref) != m.Commit {
		t.Errorf("refs/main is %q, %v", ref, err)
	}
	for _, f := range []string{unet, "model_index.json"} {
		link, err := os.Readlink(filepath.Join(dir, f))
		up := strings.Repeat("../", strings.Count(f, "/")+2)
		if err != nil || !strings.HasPrefix(link, up+"blobs/") {
			t.Errorf("%s is a link to %s, %v", f, link, err)
		}
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	if err := ck.Check("unet", "vae", "text_encoder"); err != nil {
		t.Error(err)
	}
	stored := 0
	for _, r := range s.Requests() {
		want := ""
		if r.Host == "hub" {
			want = "Bearer " + token
		} else {
			stored++
		}
		if r.Authorization != want {
			t.Errorf("%s %s at the %s has authorization %q, wanted %q", r.Method, r.Path, r.Host, r.Authorization, want)
		}
	}
	if stored != 3 {
		t.Errorf("%d requests to the store, wanted 3", stored)
	}

	// Again: one question, whether the revision is still that commit.
	mustFetch(t, Options{})
	if r := s.Requests(); len(r) != 1 {
		t.Errorf("a second time: %v", r)
	}
	// By its commit: none.
	mustFetch(t, Options{Revision: m.Commit})
	if r := s.Requests(); len(r) != 0 {
		t.Errorf("by commit: %v", r)
	}
	// Another revision with the same files.
	mustFetch(t, Options{Revision: "refs/pr/1"})
	if ref, err := os.ReadFile(filepath.Join(cache, "models--org--sd15", "refs", "refs", "pr", "1")); err != nil || string(ref) != m.Commit {
		t.Errorf("refs/refs/pr/1 is %q, %v", ref, err)
	}
}

// TestUpdate holds that a new state of a branch fetches what changed and shares the rest.
func TestUpdate(t *testing.T) {
	s, m := start(t)
	first := mustFetch(t, Options{})
	s.Requests()
	files := map[string][]byte{}
	for k, v := range m.Files {
		files[k] = v
	}
	files["vae/config.json"] = append(bytes.Clone(files["vae/config.json"]), '\n')
	n := s.Add("org/sd15", files)
	dir := mustFetch(t, Options{})
	whole(t, dir, n)
	whole(t, first, m)
	for _, r := range s.Requests() {
		if r.Method == "GET" && !strings.Contains(r.Path, "/api/") && !strings.HasSuffix(r.Path, "vae/config.json") {
			t.Errorf("%s was fetched again", r.Path)
		}
	}
}

// TestMends gives faults that end, after which the download is whole.
func TestMends(t *testing.T) {
	size := 1830512 // of the UNet's weights
	for name, c := range map[string]struct {
		faults []hubtest.Fault
		// ranges are the starts of the parts of the UNet's weights that are asked for.
		ranges string
	}{
		"dropped once":             {[]hubtest.Fault{{Host: "store", Path: unet, DropAfter: 1000000, Times: 1}}, " bytes=1000000-"},
		"dropped often":            {[]hubtest.Fault{{Host: "store", Path: unet, DropAfter: 200000, Times: 9}}, ""},
		"dropped, then no ranges":  {[]hubtest.Fault{{Host: "store", Path: unet, DropAfter: 1000000, Times: 1}, {Host: "store", Path: unet, NoRange: true, Times: 1}}, " bytes=1000000-"},
		"dropped, then 416":        {[]hubtest.Fault{{Host: "store", Path: unet, DropAfter: 1000000, Times: 1}, {Host: "store", Path: unet, Status: 416, Times: 1}}, " bytes=1000000- "},
		"a byte changed once":      {[]hubtest.Fault{{Host: "store", Path: unet, Change: true, Times: 1}}, " "},
		"a small file changed":     {[]hubtest.Fault{{Host: "hub", Method: "GET", Path: "vae/config.json", Change: true, Times: 1}}, ""},
		"500 at the listing":       {[]hubtest.Fault{{Host: "hub", Path: "revision/main", Status: 500, Times: 2}}, ""},
		"503 at a file":            {[]hubtest.Fault{{Host: "hub", Path: unet, Status: 503, Times: 3}}, ""},
		"502 at the store":         {[]hubtest.Fault{{Host: "store", Path: unet, Status: 502, Times: 3}}, "   "},
		"429":                      {[]hubtest.Fault{{Host: "hub", Path: unet, Status: 429, Header: map[string]string{"Retry-After": "1"}, Times: 1}}, ""},
		"dropped before the start": {[]hubtest.Fault{{Host: "store", Path: unet, DropAfter: 1, Times: 2}}, " bytes=1- bytes=2-"},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := start(t)
			for _, f := range c.faults {
				s.Break(f)
			}
			var last, total int64
			whole(t, mustFetch(t, Options{Progress: func(d, n int64) {
				if d > n || d < 0 {
					t.Errorf("progress: %d of %d", d, n)
				}
				last, total = d, n
			}}), m)
			if last != total {
				t.Errorf("progress ended at %d of %d", last, total)
			}
			var ranges []string
			for _, r := range s.Requests() {
				if r.Host == "store" && strings.HasSuffix(r.Path, unet) {
					ranges = append(ranges, r.Range)
				}
			}
			if got := strings.Join(ranges, " "); c.ranges != "" && got != c.ranges {
				t.Errorf("asked for %q, wanted %q", got, c.ranges)
			}
			if name == "dropped often" && len(ranges) != (size+199999)/200000 {
				t.Errorf("asked for %q", ranges)
			}
		})
	}
}

// TestResume holds that a later process goes on where one was cut short.
func TestResume(t *testing.T) {
	s, m := start(t)
	s.Break(hubtest.Fault{Host: "store", Path: unet, DropAfter: 700000, Times: 1})
	s.Break(hubtest.Fault{Host: "store", Path: unet, Status: 503, Times: -1})
	if dir, err := fetch(t, Options{}); err == nil || !strings.Contains(err.Error(), unet) || !isUnreachable(err) {
		t.Fatalf("%s, %v", dir, err)
	}
	s.Mend()
	s.Requests()
	whole(t, mustFetch(t, Options{}), m)
	for _, r := range s.Requests() {
		if r.Host == "store" && strings.HasSuffix(r.Path, unet) && r.Range != "bytes=700000-" {
			t.Errorf("asked for %q of the UNet", r.Range)
		}
	}

	// A start that was damaged meanwhile is found by the hash, and the file fetched again.
	s, m = start(t)
	s.Break(hubtest.Fault{Host: "store", Path: unet, DropAfter: 700000, Times: 1})
	s.Break(hubtest.Fault{Host: "store", Path: unet, Status: 503, Times: -1})
	if _, err := fetch(t, Options{}); err == nil {
		t.Fatal("no error")
	}
	parts, err := filepath.Glob(filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--sd15", "blobs", "*.incomplete"))
	if err != nil || len(parts) != 1 {
		t.Fatalf("%v, %v", parts, err)
	}
	if err := os.WriteFile(parts[0], make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Mend()
	whole(t, mustFetch(t, Options{}), m)
}

// TestRefused gives what no try mends: the error says so, no snapshot looks whole, and nothing is where it should not be.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		model  func(m *hubtest.Model)
		faults []hubtest.Fault
		env    map[string]string
		o      Options
		want   string
	}{
		"length too small":    {faults: []hubtest.Fault{{Host: "store", Path: unet, Length: 1000, Times: -1}}, want: "unet/diffusion_pytorch_model.safetensors: the server sends 1000 bytes from 0 on (Content-Length), wanted 1830512 in all"},
		"length too large":    {faults: []hubtest.Fault{{Host: "store", Path: unet, Length: 1830600, Times: -1}}, want: "the server sends 1830600 bytes from 0 on (Content-Length), wanted 1830512"},
		"more than said":      {faults: []hubtest.Fault{{Host: "store", Path: unet, Extra: 77, Times: -1}}, want: "the server sends more than the 1830512 bytes that it said"},
		"length of a config":  {faults: []hubtest.Fault{{Host: "hub", Method: "HEAD", Path: "vae/config.json", Length: 12, Times: -1}}, want: "vae/config.json: the server says 12 bytes, its listing 757"},
		"changed":             {faults: []hubtest.Fault{{Host: "store", Path: unet, Change: true, Times: -1}}, want: "unet/diffusion_pytorch_model.safetensors: what was received has SHA-256"},
		"config changed":      {faults: []hubtest.Fault{{Host: "hub", Method: "GET", Path: "vae/config.json", Change: true, Times: -1}}, want: "vae/config.json: what was received has git's SHA-1"},
		"dropped for ever":    {faults: []hubtest.Fault{{Host: "store", Path: unet, Status: 500, Times: -1}}, want: "HF_HUB_OFFLINE=1"},
		"too many requests":   {faults: []hubtest.Fault{{Host: "hub", Path: "revision/main", Status: 429, Times: -1}}, want: "too many requests"},
		"500":                 {faults: []hubtest.Fault{{Host: "hub", Path: "revision/main", Status: 500, Times: -1}}, want: "500 Internal Server Error"},
		"no JSON":             {faults: []hubtest.Fault{{Host: "hub", Path: "revision/main", Status: 200, Times: -1}}, want: "its answer is not the hub's; check HF_ENDPOINT"},
		"private, no token":   {model: func(m *hubtest.Model) { m.Token = token }, want: "no such model at the hub, or it is private: the server says 401 Unauthorized (Repository not found); check the name (there is no folder of that name here, either); no token was given: set HF_TOKEN"},
		"private, bad token":  {model: func(m *hubtest.Model) { m.Token = token }, env: map[string]string{"HF_TOKEN": "other"}, want: "the token is refused"},
		"gated, no token":     {model: func(m *hubtest.Model) { m.Token, m.Gated = token, true }, want: "org/sd15: model_index.json is gated"},
		"gated, no access":    {model: func(m *hubtest.Model) { m.Token, m.Gated = token, true }, env: map[string]string{"HF_TOKEN": "other"}, want: "the account of the token has no access"},
		"forbidden":           {faults: []hubtest.Fault{{Host: "hub", Path: "revision/main", Status: 403, Header: map[string]string{"X-Error-Message": "no permission"}, Times: -1}}, want: "access is refused: the server says 403 Forbidden (no permission)"},
		"no such revision":    {o: Options{Revision: "v9"}, want: `there is no revision "v9"`},
		"revision leads out":  {o: Options{Revision: "../../main"}, want: `revision: found "../../main"`},
		"a file that is gone": {faults: []hubtest.Fault{{Host: "hub", Path: unet, Status: 404, Header: map[string]string{"X-Error-Code": "EntryNotFound"}, Times: -1}}, want: unet + ": the hub has no such file"},
		"name leads out":      {model: func(m *hubtest.Model) { m.Listing["README.md"] = "../../../evil" }, want: `lists a file "../../../evil"`},
		"absolute name":       {model: func(m *hubtest.Model) { m.Listing["README.md"] = "/tmp/evil" }, want: `lists a file "/tmp/evil"`},
		"name of Windows":     {model: func(m *hubtest.Model) { m.Listing["README.md"] = `unet\..\..\evil` }, want: `whose name leads out`},
		"etag leads out":      {model: func(m *hubtest.Model) { m.ETag["vae/config.json"] = "../../evil" }, want: `the etag "\"../../evil\"", which can't name a file`},
		"no etag":             {model: func(m *hubtest.Model) { m.ETag["vae/config.json"] = "" }, want: "which can't name a file"},
		"another etag":        {model: func(m *hubtest.Model) { m.ETag[unet] = strings.Repeat("ab", 32) }, want: "its listing SHA-256"},
		"no pipeline":         {model: func(m *hubtest.Model) { delete(m.Files, "model_index.json") }, want: "has no model_index.json at the hub"},
		"weights of PyTorch":  {model: func(m *hubtest.Model) { delete(m.Files, "text_encoder/model.safetensors") }, want: "text_encoder: only safetensors is read; found text_encoder/pytorch_model.bin"},
		"no config":           {model: func(m *hubtest.Model) { delete(m.Files, "vae/config.json") }, want: `vae: found no config.json of component "vae"`},
		"no variant":          {o: Options{Variant: "bf16"}, want: `found no weights of variant "bf16"`},
		"shard is missing": {model: func(m *hubtest.Model) {
			m.Files["unet/diffusion_pytorch_model.safetensors.index.json"] = []byte(`{"weight_map": {"a": "diffusion_pytorch_model-00001-of-00001.safetensors"}}`)
		}, want: "its index unet/diffusion_pytorch_model.safetensors.index.json names unet/diffusion_pytorch_model-00001-of-00001.safetensors, which the hub does not have"},
		"shard leads out": {model: func(m *hubtest.Model) {
			m.Files["unet/diffusion_pytorch_model.safetensors.index.json"] = []byte(`{"weight_map": {"a": "../../../../evil.safetensors"}}`)
		}, want: "without a path"},
		"component leads out": {model: func(m *hubtest.Model) {
			m.Files["model_index.json"] = bytes.Replace(m.Files["model_index.json"], []byte(`"vae"`), []byte(`"../vae"`), 1)
		}, want: "wanted a name that is a folder"},
		"class":       {o: Options{Accept: func(class string) error { return fmt.Errorf("no %s here", class) }}, want: "org/sd15 can't be used: model_index.json: no StableDiffusionPipeline here"},
		"endpoint":    {env: map[string]string{"HF_ENDPOINT": "ftp://x"}, want: `HF_ENDPOINT: found "ftp://x"`},
		"unreachable": {env: map[string]string{"HF_ENDPOINT": "http://127.0.0.1:1"}, want: "can't be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := start(t)
			if c.model != nil {
				c.model(m)
				if !m.Gated && m.Token == "" && len(m.Listing)+len(m.ETag) == 0 {
					s.Add("org/sd15", m.Files) // a new commit
				}
			}
			for _, f := range c.faults {
				s.Break(f)
			}
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			dir, err := fetch(t, c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%s, %v\nwanted %q", dir, err, c.want)
			}
			for _, secret := range []string{token, "other", "signature"} {
				if strings.Contains(err.Error(), secret+" ") || strings.Contains(err.Error(), "signature=") {
					t.Errorf("the error tells the secret: %v", err)
				}
			}
			home := os.Getenv("HF_HOME")
			for _, f := range filesIn(t, filepath.Dir(home)) {
				if strings.Contains(f, "evil") {
					t.Errorf("%s was written", f)
				}
			}
			if refs := filesIn(t, filepath.Join(home, "hub", "models--org--sd15", "refs")); len(refs) > 0 {
				t.Errorf("there are refs %v", refs)
			}
			if _, err := os.Stat(filepath.Join(home, "hub", "models--org--sd15", "snapshots", m.Commit, unet)); err == nil && strings.HasPrefix(name, "length") {
				t.Error("the weights are in the snapshot")
			}
		})
	}
}

func TestCancelled(t *testing.T) {
	s, _ := start(t)
	s.Break(hubtest.Fault{Host: "store", Path: unet, Wait: 5 * time.Second, Times: 1})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := Fetch(ctx, "org/sd15", Options{Skip: skip}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 3*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestSilence holds that a server that stops sending without ending the connection is given up and asked again.
func TestSilence(t *testing.T) {
	s, m := start(t)
	was := idle
	idle = 200 * time.Millisecond
	defer func() { idle = was }()
	s.Break(hubtest.Fault{Host: "store", Path: unet, Wait: time.Second, Times: 1})
	whole(t, mustFetch(t, Options{}), m)
}

func TestOffline(t *testing.T) {
	s, m := start(t)
	t.Setenv("HF_HUB_OFFLINE", "1")
	if _, err := fetch(t, Options{}); err == nil || !strings.Contains(err.Error(), "org/sd15 is not in the cache") || !strings.Contains(err.Error(), "HF_HUB_OFFLINE is set") {
		t.Errorf("an empty cache: %v", err)
	}
	t.Setenv("HF_HUB_OFFLINE", "")
	dir := mustFetch(t, Options{})
	s.Requests()
	t.Setenv("HF_HUB_OFFLINE", "yes")
	for _, o := range []Options{{}, {Revision: m.Commit}, {ConfigOnly: true}} {
		if got := mustFetch(t, o); got != dir {
			t.Errorf("%s, wanted %s", got, dir)
		}
	}
	for _, c := range []struct{ remove, want string }{
		{vae, `vae: found no weights of component "vae"`},
		{"unet/config.json", `unet: found no config.json of component "unet"`},
		{"model_index.json", "model_index.json"},
	} {
		// The blob goes and its link stays: it does not count as a file.
		blob, err := filepath.EvalSymlinks(filepath.Join(dir, c.remove))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(blob, blob+"~"); err != nil {
			t.Fatal(err)
		}
		if _, err := fetch(t, Options{}); err == nil || !strings.Contains(err.Error(), "org/sd15 is not whole in the cache") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("without %s: %v", c.remove, err)
		}
		if err := os.Rename(blob+"~", blob); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.Requests(); len(r) != 0 {
		t.Errorf("offline: %v", r)
	}
	if _, err := fetch(t, Options{Revision: "v2"}); err == nil || !strings.Contains(err.Error(), "org/sd15@v2 is not in the cache") {
		t.Errorf("another revision: %v", err)
	}

	// A hub that does not answer: what is there serves, with a warning.
	t.Setenv("HF_HUB_OFFLINE", "")
	s.Close()
	firstPause = time.Hour // which is not waited for
	warned := ""
	if got := mustFetch(t, Options{Warn: func(format string, args ...any) { warned = fmt.Sprintf(format, args...) }}); got != dir || !strings.Contains(warned, "can't be reached") {
		t.Errorf("%s, warning %q", got, warned)
	}
}

func TestConfigOnly(t *testing.T) {
	s, m := start(t)
	dir := mustFetch(t, Options{ConfigOnly: true})
	want := []string{"model_index.json", "scheduler/scheduler_config.json", "text_encoder/config.json", "tokenizer/tokenizer_config.json", "unet/config.json", "vae/config.json"}
	if got := filesIn(t, dir); !slices.Equal(got, want) {
		t.Errorf("%v, wanted %v", got, want)
	}
	for _, r := range s.Requests() {
		if r.Host == "store" {
			t.Errorf("%s was fetched", r.Path)
		}
	}
	// A snapshot that lacks a config is not taken for whole.
	link := filepath.Join(dir, "vae", "config.json")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if got := filesIn(t, mustFetch(t, Options{ConfigOnly: true, Revision: filepath.Base(dir)})); !slices.Equal(got, want) {
		t.Errorf("%v, wanted %v", got, want)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	if _, err := fetch(t, Options{}); err == nil || !strings.Contains(err.Error(), "no weights") {
		t.Errorf("offline with configs alone: %v", err)
	}
	t.Setenv("HF_HUB_OFFLINE", "")
	whole(t, mustFetch(t, Options{}), m)
}

func TestVariantAndShards(t *testing.T) {
	s, m := start(t)
	files := m.Files
	files["unet/diffusion_pytorch_model.safetensors.index.json"] = []byte(`{"weight_map": {"a": "diffusion_pytorch_model-00001-of-00002.safetensors", "b": "diffusion_pytorch_model-00002-of-00002.safetensors"}}`)
	for i := range 2 {
		files[fmt.Sprintf("unet/diffusion_pytorch_model-0000%d-of-00002.safetensors", i+1)] = fmt.Appendf(nil, "shard %d", i)
	}
	s.Add("org/sd15", files)
	got := filesIn(t, mustFetch(t, Options{}))
	for _, f := range got {
		if strings.HasPrefix(f, "unet/diffusion") && !strings.Contains(f, "-of-") && !strings.HasSuffix(f, ".index.json") {
			t.Errorf("%s beside shards", f)
		}
	}
	if n := len(got); n != len(read)+2 {
		t.Errorf("%v", got)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	dir := mustFetch(t, Options{})
	if err := os.Remove(filepath.Join(dir, "unet", "diffusion_pytorch_model-00002-of-00002.safetensors")); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(t, Options{}); err == nil || !strings.Contains(err.Error(), "has no unet/diffusion_pytorch_model-00002-of-00002.safetensors") {
		t.Errorf("a shard is missing offline: %v", err)
	}
	t.Setenv("HF_HUB_OFFLINE", "")
	t.Setenv("HF_HOME", t.TempDir())
	got = filesIn(t, mustFetch(t, Options{Variant: "fp16"}))
	want := slices.Clone(read)
	want[slices.Index(want, unet)] = "unet/diffusion_pytorch_model.fp16.safetensors"
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("fp16: %v, wanted %v", got, want)
	}
}

func TestDisk(t *testing.T) {
	_, m := start(t)
	was := freeSpace
	defer func() { freeSpace = was }()
	freeSpace = func(string) (int64, bool) { return 2_000_000, true }
	_, err := fetch(t, Options{})
	if err == nil || !strings.Contains(err.Error(), "still to be downloaded") || !strings.Contains(err.Error(), "HF_HOME") {
		t.Errorf("no room: %v", err)
	}
	freeSpace = was
	if runtime.GOOS != "linux" {
		t.Skip("/dev/full is Linux's")
	}
	blobs := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--sd15", "blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	env := FromEnvironment()
	c, err := newClient(env)
	if err != nil {
		t.Fatal(err)
	}
	q := &model{Options: Options{Revision: "main"}, env: env, repo: "org/sd15", store: filepath.Dir(blobs), client: c}
	if err := q.resolve(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", q.blob(q.files[unet].sha256)+".incomplete"); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(t, Options{}); err == nil || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("the disk is full: %v", err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(blobs), "snapshots", m.Commit, unet)); err == nil {
		t.Error("the weights are in the snapshot")
	}
}

// TestProcesses runs two processes at once on an empty cache: each file is sent once.
func TestProcesses(t *testing.T) {
	if os.Getenv("HUB_CHILD") != "" {
		dir, err := Fetch(context.Background(), "org/sd15", Options{Skip: skip})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("DIR " + dir)
		return
	}
	s, m := start(t)
	for _, f := range []string{unet, vae} {
		s.Break(hubtest.Fault{Host: "store", Path: f, Wait: 300 * time.Millisecond, Times: -1})
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HUB_CHILD", "1")
	const n = 3
	type result struct {
		out []byte
		err error
	}
	results := make(chan result, n)
	for range n {
		go func() {
			out, err := exec.Command(self, "-test.run=^TestProcesses$", "-test.count=1").CombinedOutput()
			results <- result{out, err}
		}()
	}
	want := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--sd15", "snapshots", m.Commit)
	for range n {
		if r := <-results; r.err != nil || !bytes.Contains(r.out, []byte("DIR "+want+"\n")) {
			t.Errorf("%v: %s", r.err, r.out)
		}
	}
	whole(t, want, m)
	sent := map[string]int{}
	for _, r := range s.Requests() {
		if r.Method == "GET" && !strings.Contains(r.Path, "/api/") && (r.Host == "store" || !strings.HasSuffix(r.Path, ".safetensors")) {
			sent[r.Path]++
		}
	}
	for p, k := range sent {
		if k != 1 {
			t.Errorf("%s was sent %d times", p, k)
		}
	}
	if len(sent) != len(read) {
		t.Errorf("%d files were sent, wanted %d", len(sent), len(read))
	}
}

func TestParseName(t *testing.T) {
	for text, want := range map[string]string{
		"black-forest-labs/FLUX.1-schnell": "black-forest-labs/FLUX.1-schnell ",
		"a/b@v1":                           "a/b v1",
		"a/b@refs/pr/3":                    "a/b refs/pr/3",
		"Wan-AI/Wan2.1-T2V-1.3B-Diffusers": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers ",
		"a_b/c_d":                          "a_b/c_d ",
	} {
		if repo, revision, ok := ParseName(text); !ok || repo+" "+revision != want {
			t.Errorf("%q: %q %q %v", text, repo, revision, ok)
		}
	}
	for _, text := range []string{
		"", "a", "a/", "/a", "./a/b", "a/b/c", "../a", "a/..", "~/a", "a/b@", "a--b/c", "a/b..c", "-a/b", "a/b-", ".a/b", "a/b.git", "out/model.precast", "out/model.safetensors",
		"a b/c", "a/b\n", "a\\b/c", "ü/b", strings.Repeat("a", 97) + "/b",
	} {
		if repo, _, ok := ParseName(text); ok {
			t.Errorf("%q is taken for the model %q", text, repo)
		}
	}
	if _, err := Fetch(context.Background(), "a/b@v1", Options{}); err == nil || !strings.Contains(err.Error(), "wanted ORG/NAME") {
		t.Errorf("%v", err)
	}
}

func TestEnvironment(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".cache", "huggingface"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{".cache/huggingface/token": "from-file\n", "own-token": "own"} {
		if err := os.WriteFile(filepath.Join(home, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		env  string
		want Environment
	}{
		{"", Environment{DefaultEndpoint, home + "/.cache/huggingface/hub", "from-file", false}},
		{"XDG_CACHE_HOME=/x", Environment{DefaultEndpoint, "/x/huggingface/hub", "", false}},
		{"HF_HOME=~/hf HF_TOKEN=t", Environment{DefaultEndpoint, home + "/hf/hub", "t", false}},
		{"HF_HOME=/h HF_HUB_CACHE=$HOME/c HF_TOKEN_PATH=~/own-token", Environment{DefaultEndpoint, home + "/c", "own", false}},
		{"HUGGINGFACE_HUB_CACHE=/c HUGGING_FACE_HUB_TOKEN=u", Environment{DefaultEndpoint, "/c", "u", false}},
		{"HF_ENDPOINT=https://mirror/ HF_HUB_OFFLINE=true", Environment{"https://mirror", home + "/.cache/huggingface/hub", "from-file", true}},
		{"TRANSFORMERS_OFFLINE=ON HF_TOKEN=t HF_HUB_DISABLE_IMPLICIT_TOKEN=1", Environment{DefaultEndpoint, home + "/.cache/huggingface/hub", "", true}},
		{"HF_HUB_OFFLINE=0", Environment{DefaultEndpoint, home + "/.cache/huggingface/hub", "from-file", false}},
	} {
		for _, v := range append(slices.Clone(Variables), "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "XDG_CACHE_HOME") {
			t.Setenv(v, "")
		}
		t.Setenv("HOME", home)
		for _, kv := range strings.Fields(c.env) {
			k, v, _ := strings.Cut(kv, "=")
			t.Setenv(k, v)
		}
		if got := FromEnvironment(); got != c.want {
			t.Errorf("%s: %+v, wanted %+v", c.env, got, c.want)
		}
	}
}

// TestPython holds that huggingface_hub finds what was downloaded here, and the other way round.
func TestPython(t *testing.T) {
	python := func(code string) (string, error) {
		out, err := exec.Command("python3", "-c", code).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if out, err := python("import huggingface_hub"); err != nil {
		t.Skipf("python3 with huggingface_hub is not there: %v: %s", err, out)
	}
	s, m := start(t)
	dir := mustFetch(t, Options{})
	t.Setenv("HF_HUB_OFFLINE", "1")
	const look = "import huggingface_hub as h\nprint(h.snapshot_download('org/sd15'))\nprint(h.hf_hub_download('org/sd15', '" + unet + "'))"
	if out, err := python(look); err != nil || out != dir+"\n"+filepath.Join(dir, unet) {
		t.Errorf("huggingface_hub finds %s, %v", out, err)
	}
	t.Setenv("HF_HUB_OFFLINE", "")
	t.Setenv("HF_HOME", t.TempDir())
	names, _ := json.Marshal(read)
	const download = "import huggingface_hub as h\nfor f in %s: h.hf_hub_download('org/sd15', f)"
	if out, err := python(fmt.Sprintf(download, names)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.Requests()
	whole(t, mustFetch(t, Options{}), m)
	if r := s.Requests(); len(r) != 1 {
		t.Errorf("what Python downloaded is asked for again: %v", r)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	mustFetch(t, Options{})
}
