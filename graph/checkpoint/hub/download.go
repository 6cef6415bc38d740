package hub

import (
	"context"
	"crypto/sha1" // git's names of files
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// metadata is what the hub says of a file before it sends it.
type metadata struct {
	etag string
	size int64
}

var (
	safeEtag = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
	isSHA256 = regexp.MustCompile(`^[0-9a-f]{64}$`)
	isSHA1   = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

func (m *model) address(file string) string {
	parts := strings.Split(file, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return m.env.Endpoint + "/" + m.repo + "/resolve/" + m.commit + "/" + strings.Join(parts, "/")
}

// head asks for a file's etag and size, and holds both against the listing.
func (m *model) head(ctx context.Context, file string) (metadata, error) {
	var meta metadata
	err := retry(ctx, attempts, func() (bool, error) {
		resp, err := m.client.send(ctx, http.MethodHead, m.address(file), nil)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		h := resp.Header
		if found := h.Get("X-Repo-Commit"); found != m.commit {
			return false, permanentError{fmt.Errorf("%s: %s: the server says commit %q, wanted %s; check HF_ENDPOINT and the proxy settings", m.title(), file, found, m.commit)}
		}
		etag, size := h.Get("X-Linked-Etag"), h.Get("X-Linked-Size")
		if etag == "" {
			etag = h.Get("ETag")
		}
		if size == "" && resp.StatusCode < 300 {
			size = h.Get("Content-Length")
		}
		meta = metadata{etag: strings.Trim(strings.TrimPrefix(etag, "W/"), `"`), size: m.files[file].size}
		if !safeEtag.MatchString(meta.etag) {
			return false, permanentError{fmt.Errorf("%s: %s: the server gives it the etag %q, which can't name a file", m.title(), file, etag)}
		}
		if size != "" {
			n, err := strconv.ParseInt(size, 10, 64)
			if err != nil || n < 0 || meta.size >= 0 && n != meta.size {
				return false, permanentError{fmt.Errorf("%s: %s: the server says %s bytes, its listing %d", m.title(), file, size, meta.size)}
			}
			if meta.size < 0 {
				meta.size = n
				m.count(0, n)
			}
		}
		if meta.size < 0 {
			return false, permanentError{fmt.Errorf("%s: %s: the server does not say how large it is", m.title(), file)}
		}
		if want := m.files[file].sha256; want != "" && meta.etag != want {
			return false, permanentError{fmt.Errorf("%s: %s: the server gives it the etag %s, its listing SHA-256 %s", m.title(), file, meta.etag, want)}
		}
		return false, nil
	})
	if err != nil {
		return meta, m.explain(err, file)
	}
	return meta, nil
}

func (m *model) blob(etag string) string { return filepath.Join(m.store, "blobs", etag) }

func (m *model) link(file string) string {
	return filepath.Join(m.snapshot(), filepath.FromSlash(file))
}

// inSnapshot reports whether the snapshot has a file, of the size that the listing gives it.
func (m *model) inSnapshot(file string) bool {
	info, err := os.Stat(m.link(file))
	size := m.files[file].size
	return err == nil && info.Mode().IsRegular() && (size < 0 || info.Size() == size)
}

// get brings one file into the snapshot. One process downloads a blob, while others that want it wait.
func (m *model) get(ctx context.Context, file string) error {
	meta, err := m.head(ctx, file)
	if err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(m.store, "blobs"), filepath.Dir(m.link(file)), m.locks()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return m.diskError(err)
		}
	}
	unlock, err := m.lock(ctx, meta.etag)
	if err != nil {
		return err
	}
	defer unlock()
	path := m.blob(meta.etag)
	if info, err := os.Stat(path); err == nil && info.Size() == meta.size {
		m.count(meta.size, 0)
	} else if err := m.transfer(ctx, file, meta); err != nil {
		return err
	}
	return m.makeLink(path, m.link(file))
}

func (m *model) locks() string {
	return filepath.Join(m.env.Cache, ".locks", filepath.Base(m.store))
}

// lock takes the lock of a blob, the same that huggingface_hub takes. Where the file system knows no locks there is none: a blob is renamed to its
// name when it is whole, so a second download costs time only.
func (m *model) lock(ctx context.Context, etag string) (func(), error) {
	path := filepath.Join(m.locks(), etag+".lock")
	l := flock.New(path)
	const patience = 10 * time.Second
	told := time.AfterFunc(patience, func() { m.warn("waiting for another process that downloads the same file (it holds %s)", path) })
	defer told.Stop()
	const poll = 50 * time.Millisecond
	if _, err := l.TryLockContext(ctx, poll); err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOLCK):
			return func() {}, nil
		}
		return nil, m.diskError(err)
	}
	return func() { _ = l.Close() }, nil
}

// transfer downloads a blob: to a neighbour that ends in .incomplete, which a later try goes on with, and that gets its name when size and hash
// are right.
func (m *model) transfer(ctx context.Context, file string, meta metadata) error {
	path := m.blob(meta.etag)
	part := path + ".incomplete"
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return m.diskError(err)
	}
	defer f.Close()
	wrong := 0
	err = retry(ctx, attempts, func() (bool, error) {
		progress, err := m.receive(ctx, f, file, meta)
		var hash *hashError
		if errors.As(err, &hash) {
			// A damaged start may have come from an earlier try: once more from the beginning.
			m.count(-meta.size, 0)
			if terr := f.Truncate(0); terr != nil {
				return false, permanentError{m.diskError(terr)}
			}
			if wrong++; wrong > 1 {
				return false, permanentError{fmt.Errorf("%s: %s: %w", m.title(), file, err)}
			}
			return false, err
		}
		return progress, err
	})
	if err != nil {
		return m.explain(err, file)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return m.diskError(err)
	}
	if err := os.Rename(part, path); err != nil {
		return m.diskError(err)
	}
	return nil
}

// hashError is a file that is not what its name says.
type hashError struct{ kind, found, want string }

func (e *hashError) Error() string {
	return fmt.Sprintf("what was received has %s %s, wanted %s", e.kind, e.found, e.want)
}

// receive asks for what f has not yet, appends it, and checks the whole. progress says that something was received.
func (m *model) receive(ctx context.Context, f *os.File, file string, meta metadata) (progress bool, err error) {
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, permanentError{m.diskError(err)}
	}
	if have > meta.size {
		// Of another file, or of a server that sent too much.
		if err := f.Truncate(0); err != nil {
			return false, permanentError{m.diskError(err)}
		}
		if have, err = f.Seek(0, io.SeekStart); err != nil {
			return false, permanentError{m.diskError(err)}
		}
	}
	counted := int64(0) // what the progress report has of this file
	count := func(n int64) {
		counted += n
		m.count(n, 0)
	}
	defer func() {
		if err != nil {
			var h *hashError
			if !errors.As(err, &h) {
				m.count(-counted, 0) // the next try counts again what is there
			}
		}
	}()
	if have < meta.size {
		header := http.Header{}
		if have > 0 {
			header.Set("Range", fmt.Sprintf("bytes=%d-", have))
		}
		resp, err := m.client.send(ctx, http.MethodGet, m.address(file), header)
		var status *statusError
		if errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable {
			if terr := f.Truncate(0); terr != nil {
				return false, permanentError{m.diskError(terr)}
			}
			return false, errors.New("the server refuses to go on where the last try ended")
		}
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		start := int64(0)
		if resp.StatusCode == http.StatusPartialContent {
			if start, err = rangeStart(resp.Header.Get("Content-Range"), meta.size); err != nil || start > have {
				return false, permanentError{fmt.Errorf("%s: %s: the server answers a request for bytes %d and on with Content-Range %q, wanted %d bytes in all",
					m.title(), file, have, resp.Header.Get("Content-Range"), meta.size)}
			}
		}
		if n := resp.ContentLength; n >= 0 && start+n != meta.size {
			return false, permanentError{fmt.Errorf("%s: %s: the server sends %d bytes from %d on (Content-Length), wanted %d in all", m.title(), file, n, start, meta.size)}
		}
		if start != have {
			if err := f.Truncate(start); err != nil {
				return false, permanentError{m.diskError(err)}
			}
			if _, err := f.Seek(start, io.SeekStart); err != nil {
				return false, permanentError{m.diskError(err)}
			}
		}
		have = start
		count(start)
		for buf := make([]byte, 1<<18); ; {
			n, rerr := resp.Body.Read(buf)
			if have+int64(n) > meta.size {
				return progress, permanentError{fmt.Errorf("%s: %s: the server sends more than the %d bytes that it said", m.title(), file, meta.size)}
			}
			if n > 0 {
				if _, err := f.Write(buf[:n]); err != nil {
					return progress, permanentError{m.diskError(err)}
				}
				have += int64(n)
				progress = true
				count(int64(n))
			}
			if rerr == io.EOF {
				break
			}
			if rerr != nil {
				return progress, fmt.Errorf("the connection broke after %d of %d bytes: %w", have, meta.size, rerr)
			}
		}
		if have < meta.size {
			return progress, fmt.Errorf("the connection ended after %d of %d bytes: %w", have, meta.size, io.ErrUnexpectedEOF)
		}
	} else {
		count(meta.size)
	}
	return progress, checkHash(f, meta)
}

// rangeStart reads "bytes START-END/TOTAL".
func rangeStart(text string, size int64) (int64, error) {
	var start, end, total int64
	if _, err := fmt.Sscanf(text, "bytes %d-%d/%d", &start, &end, &total); err != nil {
		return 0, err
	}
	if start < 0 || end != size-1 || total != size {
		return 0, errors.New("another range")
	}
	return start, nil
}

// checkHash holds a whole file against its etag: SHA-256 of a file in large file storage, git's SHA-1 of others. A server may use other etags; then its size,
// which is right, has to do.
func checkHash(f *os.File, meta metadata) error {
	var h hash.Hash
	kind := "SHA-256"
	switch {
	case isSHA256.MatchString(meta.etag):
		h = sha256.New()
	case isSHA1.MatchString(meta.etag):
		kind = "git's SHA-1"
		h = sha1.New()
		fmt.Fprintf(h, "blob %d\x00", meta.size)
	default:
		return nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return permanentError{err}
	}
	if _, err := io.Copy(h, f); err != nil {
		return permanentError{err}
	}
	if found := hex.EncodeToString(h.Sum(nil)); found != meta.etag {
		return &hashError{kind, found, meta.etag}
	}
	return nil
}

// makeLink gives a blob its path in the snapshot: a relative link, or the file itself where the system has no links.
func (m *model) makeLink(blob, link string) error {
	if a, err := os.Stat(link); err == nil {
		if b, err := os.Stat(blob); err == nil && os.SameFile(a, b) {
			return nil
		}
	}
	rel, err := filepath.Rel(filepath.Dir(link), blob)
	if err != nil {
		return err
	}
	temp := fmt.Sprintf("%s.%d.tmp", link, os.Getpid())
	_ = os.Remove(temp)
	if err := os.Symlink(rel, temp); err != nil {
		// Where there are no symbolic links huggingface_hub moves the blob here.
		if err := os.Rename(blob, link); err != nil {
			return m.diskError(err)
		}
		return nil
	}
	if err := os.Rename(temp, link); err != nil {
		_ = os.Remove(temp)
		return m.diskError(err)
	}
	return nil
}

// writeRef notes which commit the revision is, for use offline. It comes after the files: an update that is cut short leaves the last one usable.
func (m *model) writeRef() error {
	if m.Revision == m.commit {
		return nil
	}
	path := filepath.Join(m.store, "refs", filepath.FromSlash(m.Revision))
	if text, err := os.ReadFile(path); err == nil && string(text) == m.commit {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return m.diskError(err)
	}
	temp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	if err := errors.Join(os.WriteFile(temp, []byte(m.commit), 0o644), os.Rename(temp, path)); err != nil {
		_ = os.Remove(temp)
		return m.diskError(err)
	}
	return nil
}

// diskError says what to do about a cache that can't be written.
func (m *model) diskError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%s: the disk is full: %w; make room in %s, or set HF_HOME to a folder elsewhere; what was downloaded stays, and the next try goes on from it",
			m.title(), err, m.env.Cache)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%s: the cache can't be written: %w; set HF_HOME to a folder that can", m.title(), err)
	}
	return fmt.Errorf("%s: %w", m.title(), err)
}

// checkSpace refuses to begin what the disk has no room for.
func (m *model) checkSpace(files []string) error {
	var wanted int64
	for _, f := range files {
		wanted += max(0, m.files[f].size)
		if sha := m.files[f].sha256; sha != "" {
			for _, have := range []string{m.blob(sha), m.blob(sha) + ".incomplete"} {
				if info, err := os.Stat(have); err == nil {
					wanted -= info.Size()
					break
				}
			}
		}
	}
	if err := os.MkdirAll(m.store, 0o755); err != nil {
		return m.diskError(err)
	}
	if free, ok := freeSpace(m.store); ok && wanted > free {
		return fmt.Errorf("%s: %.1f GB are still to be downloaded, and %s has room for %.1f GB; make room, or set HF_HOME to a folder elsewhere",
			m.title(), float64(wanted)/1e9, m.env.Cache, float64(free)/1e9)
	}
	return nil
}
