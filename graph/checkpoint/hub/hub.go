// Package hub brings models from the Hugging Face hub, or a server that speaks like it, into the cache that Python's huggingface_hub keeps, and finds them
// there: what one has downloaded the other uses.
//
// The layout (huggingface_hub's documentation, "Understand caching"): models--ORG--NAME has blobs, files named by their etag (SHA-256, or git's
// SHA-1 of small files); snapshots/COMMIT with symbolic links to them by path; and refs/REVISION with a commit. Locks are in .locks beside.
//
// Of a model only what the pipeline reads is downloaded: model_index.json, the components' configs, the files of tokenizers, one set of safetensors
// weights each.
package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"precast/graph/checkpoint"
)

// Options say what of a model is wanted.
type Options struct {
	// Revision is a branch, a tag, a commit or refs/pr/N; empty is main.
	Revision string
	// Variant chooses weight files, as checkpoint.Options has it.
	Variant string
	// ConfigOnly leaves the weights and tokenizers out: configs are enough to compile up to StableHLO.
	ConfigOnly bool
	// Skip names components that are not read, by their name and class; nil skips none.
	Skip func(component, class string) bool
	// Accept refuses a pipeline's class by its error, as soon as that is known; nil takes all.
	Accept func(class string) error
	// Progress is told how many bytes of how many are there, whenever some more are; calls come one at a time.
	Progress func(done, total int64)
	// Warn is told what the user should know.
	Warn func(format string, args ...any)
}

func (o *Options) warn(format string, args ...any) {
	if o.Warn != nil {
		o.Warn(format, args...)
	}
}

var (
	namePart = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?$`)
	commitID = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// ParseName splits ORG/NAME[@REVISION]; ok says that text is of that form (huggingface_hub/utils/_validators.py has the rules) and not the
// path of a file that precast reads.
func ParseName(text string) (repo, revision string, ok bool) {
	repo, revision, at := strings.Cut(text, "@")
	org, name, slash := strings.Cut(repo, "/")
	if !slash || !namePart.MatchString(org) || !namePart.MatchString(name) || at && revision == "" {
		return "", "", false
	}
	if strings.Contains(repo, "--") || strings.Contains(repo, "..") {
		return "", "", false
	}
	for _, ext := range []string{".git", ".precast", ".safetensors", ".json", ".graph", ".png", ".webp", ".ckpt", ".gguf"} {
		if strings.HasSuffix(name, ext) {
			return "", "", false
		}
	}
	return repo, revision, true
}

// model is one model at one revision.
type model struct {
	Options
	env  Environment
	repo string
	// store is models--ORG--NAME in the cache.
	store  string
	commit string
	client *client
	// files is what the hub has at the commit, nil offline.
	files map[string]remoteFile

	mu          sync.Mutex
	done, total int64
}

// Fetch makes sure that what a pipeline reads of the model ORG/NAME is in the cache, downloads what is not, and returns the folder, a checkpoint in the
// layout of diffusers. Offline, and where the hub can't be reached, a snapshot that has everything serves.
//
// Errors say what to do: about access (401, 403, gated, no token), names and revisions that do not exist, too many requests, a full disk, files that
// are not what the hub said.
func Fetch(ctx context.Context, repo string, o Options) (dir string, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
	}()
	if parsed, revision, ok := ParseName(repo); !ok || revision != "" || parsed != repo {
		return "", fmt.Errorf("%q is no model's name at the hub; wanted ORG/NAME", repo)
	}
	if o.Revision == "" {
		o.Revision = "main"
	}
	if !isLocalName(o.Revision) {
		return "", fmt.Errorf("revision: found %q, wanted a branch, a tag or a commit", o.Revision)
	}
	env := FromEnvironment()
	m := &model{Options: o, env: env, repo: repo, store: filepath.Join(env.Cache, "models--"+strings.ReplaceAll(repo, "/", "--"))}
	if env.Offline {
		return m.fromCache(errors.New("HF_HUB_OFFLINE is set"))
	}
	if m.client, err = newClient(env); err != nil {
		return "", err
	}
	tries := attempts
	have, _ := m.fromCache(nil)
	if have != "" {
		if commitID.MatchString(o.Revision) {
			return have, nil // a commit does not change
		}
		tries = 1 // who has the model waits for no hub
	}
	if err := m.resolve(ctx, tries); err != nil {
		if ctx.Err() != nil || !isUnreachable(err) {
			return "", err
		}
		if have == "" {
			return m.fromCache(err) // whose error says what is missing
		}
		m.warn("%v; what the cache has of %s is used", err, m.repo)
		return have, nil
	}
	return m.download(ctx)
}

func (m *model) title() string {
	if m.Revision == "main" {
		return m.repo
	}
	return m.repo + "@" + m.Revision
}

// isLocalName reports whether a name, with / between its parts, stays inside a folder on every system.
func isLocalName(name string) bool {
	if name == "" || strings.ContainsAny(name, "\\:\x00") || path.Clean(name) != name || !filepath.IsLocal(filepath.FromSlash(name)) {
		return false
	}
	return name != "."
}

// fromCache finds a snapshot in the cache that has all that is read. why says why the hub is not asked, nil where it still can be.
func (m *model) fromCache(why error) (string, error) {
	if m.commit = m.Revision; !commitID.MatchString(m.Revision) {
		text, err := os.ReadFile(filepath.Join(m.store, "refs", filepath.FromSlash(m.Revision)))
		if m.commit = strings.TrimSpace(string(text)); err != nil || !commitID.MatchString(m.commit) {
			return "", fmt.Errorf("%s is not in the cache %s, and nothing is downloaded: %w", m.title(), m.env.Cache, orNone(why))
		}
	}
	dir := m.snapshot()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return "", fmt.Errorf("%s is not whole in the cache, and nothing is downloaded (%w): %w", m.title(), orNone(why), err)
	}
	defer ck.Close()
	have := map[string]remoteFile{}
	err = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() { // a link whose file is gone does not count
			have[filepath.ToSlash(rel)] = remoteFile{}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	needs, err := m.needs(dir, have)
	if err != nil {
		return "", fmt.Errorf("%s is not whole in the cache, and nothing is downloaded (%w): %w", m.title(), orNone(why), err)
	}
	var missing []string
	for _, index := range needs.indexes {
		shards, err := m.shards(dir, index)
		if err != nil {
			return "", err
		}
		for _, s := range shards {
			if _, ok := have[s]; !ok {
				missing = append(missing, s)
			}
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("%s is not whole in the cache, and nothing is downloaded (%w): %s has no %s", m.title(), orNone(why), dir, strings.Join(missing, ", "))
	}
	return dir, nil
}

func orNone(err error) error {
	if err == nil {
		return errors.New("not asked")
	}
	return err
}

func (m *model) snapshot() string { return filepath.Join(m.store, "snapshots", m.commit) }

// needed are the files that are read, but for shards, which an index has to be read for.
type needed struct {
	files, indexes []string
}

// needs chooses from files, those of the model by path, what a pipeline reads, by the model_index.json in dir. All faults are reported at once.
func (m *model) needs(dir string, files map[string]remoteFile) (*needed, error) {
	ck, err := checkpoint.OpenIndex(dir, m.Variant)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	if m.Accept != nil {
		if err := m.Accept(ck.Class()); err != nil {
			return nil, fmt.Errorf("%s: %w", ck.Path(indexName), err)
		}
	}
	names := map[string][]string{}
	for p := range files {
		if folder, name, ok := strings.Cut(p, "/"); ok && !strings.Contains(name, "/") {
			names[folder] = append(names[folder], name)
		}
	}
	n := &needed{files: []string{indexName}}
	var errs []error
	var variants []string
	for _, c := range ck.Components() {
		if m.Skip != nil && m.Skip(c, ck.ClassOf(c)) {
			continue
		}
		list := names[c]
		slices.Sort(list)
		need, err := ck.Needs(c, list, m.ConfigOnly)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, f := range need.Files {
			n.files = append(n.files, path.Join(c, f))
		}
		if need.Weights != "" {
			n.files = append(n.files, path.Join(c, need.Weights))
			variants = append(variants, need.Variant)
		}
		if need.Sharded {
			n.indexes = append(n.indexes, path.Join(c, need.Weights))
		}
	}
	if m.Variant != "" && !m.ConfigOnly && len(errs) == 0 && !slices.Contains(variants, m.Variant) {
		errs = append(errs, fmt.Errorf("%s: found no weights of variant %q", dir, m.Variant))
	}
	return n, errors.Join(errs...)
}

const indexName = "model_index.json"

// shards are the paths of the files that the weight index of a component in dir names.
func (m *model) shards(dir, index string) ([]string, error) {
	names, err := checkpoint.ReadShards(filepath.Join(dir, filepath.FromSlash(index)))
	if err != nil {
		return nil, err
	}
	for i, n := range names {
		names[i] = path.Join(path.Dir(index), n)
	}
	return names, nil
}

// download brings what is read into the snapshot of the resolved commit.
func (m *model) download(ctx context.Context) (string, error) {
	dir := m.snapshot()
	if _, ok := m.files[indexName]; !ok {
		return "", fmt.Errorf("%s has no %s at the hub: it is no pipeline in the layout of diffusers%s", m.title(), indexName, m.looksLike())
	}
	if err := m.getAll(ctx, []string{indexName}); err != nil {
		return "", err
	}
	n, err := m.needs(dir, m.files)
	if err != nil {
		// The paths in the error are those that the files would have here.
		return "", fmt.Errorf("%s can't be used: %w", m.title(), errors.New(strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), "")))
	}
	// Small files first: what is wrong with a config or an index is found before gigabytes are on their way.
	small, large := []string{}, []string{}
	for _, f := range n.files {
		if strings.HasSuffix(f, ".safetensors") {
			large = append(large, f)
		} else {
			small = append(small, f)
		}
	}
	if err := m.getAll(ctx, small); err != nil {
		return "", err
	}
	for _, index := range n.indexes {
		shards, err := m.shards(dir, index)
		if err != nil {
			return "", err
		}
		for _, s := range shards {
			if _, ok := m.files[s]; !ok {
				return "", fmt.Errorf("%s: its index %s names %s, which the hub does not have", m.title(), index, s)
			}
		}
		large = append(large, shards...)
	}
	if err := m.getAll(ctx, large); err != nil {
		return "", err
	}
	return dir, m.writeRef()
}

// looksLike says what a model without a model_index.json seems to be.
func (m *model) looksLike() string {
	if _, ok := m.files["config.json"]; ok {
		return "; it has a config.json, so it may be a component of one, or a language model"
	}
	for f := range m.files {
		if strings.HasSuffix(f, ".safetensors") || strings.HasSuffix(f, ".ckpt") || strings.HasSuffix(f, ".gguf") {
			return "; it has " + f + ", and single-file checkpoints are not read"
		}
	}
	return ""
}

// workers is the number of files that are downloaded at a time.
const workers = 4

// getAll brings files into the snapshot, several at a time.
func (m *model) getAll(ctx context.Context, files []string) error {
	var absent []string
	var bytes int64
	for _, f := range files {
		if !m.inSnapshot(f) {
			absent = append(absent, f)
			bytes += max(0, m.files[f].size)
		}
	}
	if len(absent) == 0 {
		return nil
	}
	m.count(0, bytes)
	if err := m.checkSpace(absent); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for _, f := range absent {
		g.Go(func() error { return m.get(ctx, f) })
	}
	return g.Wait()
}

// count adds to the bytes that are there and to those that are wanted.
func (m *model) count(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += done
	m.total += total
	if m.Progress != nil {
		m.Progress(m.done, m.total)
	}
}
