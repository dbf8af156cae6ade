# zfs-fuse: `make demo` shows it, `make test` proves it, `make bench` measures it, `make install` installs it.
PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
# Where cargo builds.
TARGET ?= $(or $(CARGO_TARGET_DIR),target)

PROGRAMS = zfs-fuse zpool zfs zdb zstream ztest
MAN7 = vdevprops zfsprops zpoolprops
MAN8 = zfs-fuse zpool zfs zdb zstream
# Programs that shells complete.
COMPLETED = zfs-fuse zpool zfs zdb zstream

BIN = $(DESTDIR)$(PREFIX)/bin
SBIN = $(DESTDIR)$(PREFIX)/sbin
# Where mount(8) looks for the programs that mount the types fuse.zfs and zfs.
HELPERS = $(DESTDIR)/sbin
MOUNT_HELPERS = mount.fuse.zfs mount.zfs
SHARE = $(DESTDIR)$(PREFIX)/share
BASH_DIR = $(SHARE)/bash-completion/completions
ZSH_DIR = $(SHARE)/zsh/site-functions
FISH_DIR = $(SHARE)/fish/vendor_completions.d
UNITS = $(DESTDIR)$(PREFIX)/lib/systemd/system
USER_UNITS = $(DESTDIR)$(PREFIX)/lib/systemd/user
# Units of the system as they are, beside the one of the daemon.
TIMERS = zfs-scrub@.service zfs-scrub-weekly@.timer zfs-scrub-monthly@.timer
# Where systemctl enable puts its links.
ENABLED = $(DESTDIR)/etc/systemd

.PHONY: all build demo undemo test check soak nightly bench install uninstall clean

all: build

# The programs, their manual and their completions: all that `make install` copies, which needs no cargo.
build:
	$(CARGO) build --release -p daemon -p zdb -p zstream -p ztest
	$(CARGO) build --profile commands -p zpool -p zfs -p xtask
	cp $(TARGET)/commands/zpool $(TARGET)/commands/zfs $(TARGET)/release/
	rm -rf $(TARGET)/man $(TARGET)/completions
	$(TARGET)/commands/xtask manual $(TARGET)/man
	$(TARGET)/commands/xtask completions $(TARGET)/completions

demo:
	sh tools/demo.sh

undemo:
	sh tools/demo.sh --remove

check:
	sh tools/test.sh format lints docs tidy licences msrv

test:
	sh tools/test.sh

# Simulated worlds and crash points with fresh seeds, then power cuts of the real daemon:
# make soak MINUTES=480 CUTS=600
MINUTES ?= 10
CUTS ?= 600
soak:
	status=0; \
	nice -n 19 $(CARGO) xtask sim --soak $(MINUTES) --subsets 300 --images 100 --shrink || status=1; \
	nice -n 19 $(CARGO) run -q -p system-tests --bin power-cuts -- --cuts $(CUTS) || status=1; \
	exit $$status

# Everything too long for `make test`; writes target/nightly/results.md. STEPS names some of its steps: make nightly STEPS="sim ztest"
nightly:
	MINUTES=$(MINUTES) CUTS=$(CUTS) sh tools/nightly.sh $(STEPS)

# BENCH takes options: make bench BENCH="--full --rows fsync"
bench:
	sh tools/setup.sh bench
	$(CARGO) xtask bench $(BENCH)

# In bin, where ordinary users look; links in sbin for scripts that look there (unless the two are one).
install:
	@for f in $(PROGRAMS:%=release/%) man/zpool.8 completions/bash/zpool; do \
		test -e $(TARGET)/$$f || { echo "install: $(TARGET)/$$f is missing: run 'make' first, as the user who has cargo" >&2; exit 1; }; \
	done
	install -d $(BIN) $(SBIN) $(SHARE)/man/man7 $(SHARE)/man/man8 $(BASH_DIR) $(ZSH_DIR) $(FISH_DIR) $(UNITS) $(USER_UNITS)
	install -m 755 $(PROGRAMS:%=$(TARGET)/release/%) $(BIN)/
	ln -sf zstream $(BIN)/zstreamdump
	if ! [ $(BIN) -ef $(SBIN) ]; then for p in $(PROGRAMS); do ln -sf ../bin/$$p $(SBIN)/$$p; done; fi
	if install -d $(HELPERS) 2>/dev/null && [ -w $(HELPERS) ]; then for h in $(MOUNT_HELPERS); do \
		if [ -e $(HELPERS)/$$h ] && ! [ -L $(HELPERS)/$$h ]; then echo "install: $(HELPERS)/$$h is there already (OpenZFS's?) and stays" >&2; \
		else ln -sf $(PREFIX)/bin/zfs $(HELPERS)/$$h; fi; done; \
	else echo "install: $(HELPERS) is not writable: mount(8) will not find $(MOUNT_HELPERS)" >&2; fi
	install -m 644 $(MAN7:%=$(TARGET)/man/%.7) $(SHARE)/man/man7/
	install -m 644 $(MAN8:%=$(TARGET)/man/%.8) $(SHARE)/man/man8/
	install -m 644 $(COMPLETED:%=$(TARGET)/completions/bash/%) $(BASH_DIR)/
	install -m 644 $(COMPLETED:%=$(TARGET)/completions/zsh/_%) $(ZSH_DIR)/
	install -m 644 $(COMPLETED:%=$(TARGET)/completions/fish/%.fish) $(FISH_DIR)/
	sed 's|@PREFIX@|$(PREFIX)|g' tools/zfs-fuse.service.in > $(UNITS)/zfs-fuse.service
	sed 's|@PREFIX@|$(PREFIX)|g' tools/zfs-fuse.user.service.in > $(USER_UNITS)/zfs-fuse.service
	for u in $(TIMERS); do sed 's|@PREFIX@|$(PREFIX)|g' tools/$$u.in > $(UNITS)/$$u; done
	chmod 644 $(UNITS)/zfs-fuse.service $(TIMERS:%=$(UNITS)/%) $(USER_UNITS)/zfs-fuse.service
	rm -rf $(SHARE)/zfs-fuse

uninstall:
	-for h in $(MOUNT_HELPERS); do [ "$$(readlink $(HELPERS)/$$h)" != $(PREFIX)/bin/zfs ] || rm -f $(HELPERS)/$$h; done
	rm -f $(PROGRAMS:%=$(SBIN)/%) $(PROGRAMS:%=$(BIN)/%) $(BIN)/zstreamdump
	rm -f $(MAN7:%=$(SHARE)/man/man7/%.7) $(MAN8:%=$(SHARE)/man/man8/%.8)
	rm -f $(COMPLETED:%=$(BASH_DIR)/%) $(COMPLETED:%=$(ZSH_DIR)/_%) $(COMPLETED:%=$(FISH_DIR)/%.fish)
	rm -f $(UNITS)/zfs-fuse.service $(TIMERS:%=$(UNITS)/%) $(USER_UNITS)/zfs-fuse.service
	rm -f $(ENABLED)/system/*.wants/zfs-fuse.service $(ENABLED)/user/*.wants/zfs-fuse.service
	rm -f $(ENABLED)/system/*.wants/zfs-scrub-weekly@*.timer $(ENABLED)/system/*.wants/zfs-scrub-monthly@*.timer
	rm -rf $(SHARE)/zfs-fuse

clean:
	$(CARGO) clean
