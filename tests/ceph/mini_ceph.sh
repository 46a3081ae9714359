#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A throw-away real Ceph cluster (one monitor, one OSD, no manager) in one directory, in about a second. Any user,
# loopback only, several at once. Needs ceph-mon, ceph-osd, ceph-common, python3-rados (scripts/setup.sh).
#   mini_ceph.sh up DIR      start it; one that runs is left alone. Prints its ceph.conf
#   mini_ceph.sh down DIR    kill the daemons that DIR started, and remove DIR
#   mini_ceph.sh stop DIR    end the daemons, keep DIR (bluestore's data survive)
#   mini_ceph.sh pids DIR    "name pid rss_kib threads=N" for each daemon
# Environment:
#   STORE=memstore|bluestore  where the OSD keeps its objects. A memstore does not survive its OSD
#   AUTH=cephx|none  POOL=rbd  PGS=8  SIZE=8G (of the store)
#   OWNER_PID=PID    goes down by itself when that process has ended, however it ended
set -euo pipefail
umask 077
cmd=${1:-}; dir=${2:-}
[[ -n $cmd && -n $dir ]] || {
    sed -n '3,12p' "$0"
    exit 2
}
STORE=${STORE:-memstore} AUTH=${AUTH:-cephx} POOL=${POOL:-rbd} PGS=${PGS:-8} SIZE=${SIZE:-8G} OWNER_PID=${OWNER_PID:-}
PATH=$PATH:/usr/sbin:/sbin
LOG_LINES=60 LOG_COLUMNS=300
client=   # process id of the one that waits for the cluster
die() {
    echo "mini_ceph: $*" >&2
    exit 1
}

# The folder goes with the test: what the daemons said is a part of the failure, or nobody ever sees it.
die_with_logs() {
    local n f
    for n in mon.a osd.0; do
        echo "mini_ceph: $n $(pid_of $n >/dev/null && echo runs || echo "has ended, or was never started")"
        for f in "$dir/$n.out" "$dir/$n.log"; do
            [[ -s $f ]] || continue
            echo "---- the end of ${f##*/}"
            tail -n "$LOG_LINES" "$f" | cut -c "1-$LOG_COLUMNS"
        done
    done >&2
    [[ -z $client ]] || kill "$client" 2>/dev/null || true   # it has the caller's pipe
    die "$*"
}

# A pid is ours only if its command line names our own conf file.
ours() { [[ -r /proc/$1/cmdline ]] && tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qF -- "-c $dir/ceph.conf "; }
pid_of() { local p; p=$(cat "$dir/$1.pid" 2>/dev/null) || return 1; ours "$p" && echo "$p"; }

stop_all() {
    local n p i
    for n in osd.0 mon.a; do
        p=$(pid_of $n) || continue
        kill -CONT "$p" 2>/dev/null || true   # a test may have SIGSTOPped it
        # memstore is going away anyway: no reason to wait for a clean unmount
        if [[ $STORE_USED == memstore || $1 == kill ]]; then kill -KILL "$p"; else kill -TERM "$p"; fi
        for ((i = 0; i < 2400; i++)); do ours "$p" || break; sleep 0.05; done
        ours "$p" && kill -KILL "$p"
        rm -f "$dir/$n.pid"
    done
}

start() { # name, command...; the daemon stays a plain child in its own session, logging in DIR
    local n=$1; shift
    setsid "$@" </dev/null >>"$dir/$n.out" 2>&1 9>&- &
    echo $! >"$dir/$n.pid"
}

up() {
    mkdir -p "$dir"; dir=$(cd "$dir" && pwd)
    (( ${#dir} <= 80 )) || die "DIR too long for a unix socket path: $dir"
    exec 9>"$dir/.lock"; flock 9
    echo "making stores and starting daemons" >"$dir/stage"
    watch_owner   # first: a start that fails leaves no daemons behind
    trap 'die_with_logs "ended from outside while it was $(cat "$dir/stage")"' TERM   # whoever calls it has a limit of his own
    local fresh=0 port
    [[ -f $dir/ready ]] || fresh=1
    if ((fresh)); then
        # half-made earlier try: stop what it left and start over
        STORE_USED=memstore stop_all kill; rm -rf "$dir"/{mon,osd} "$dir"/*.keyring "$dir"/*map
        # Below the kernel's ephemeral range, so no outgoing connection takes it meanwhile; by this process's id, so no other
        # cluster that is brought up at the same time does.
        port=$((20000 + $$ % 12000))
        while (exec 8<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((20000 + RANDOM % 12000)); done
        echo "$STORE" >"$dir/store"
        cat >"$dir/ceph.conf" <<C
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = [v2:127.0.0.1:$port/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = $AUTH
auth service required = $AUTH
auth client required = $AUTH
keyring = $dir/\$name.keyring
run dir = $dir
pid file =
log file = $dir/\$name.log
log to stderr = false
debug rocksdb = 0
debug bluefs = 0
debug bdev = 0
err to stderr = true
admin socket = $dir/\$name.asok
ms bind msgr1 = false
ms bind ipv6 = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = $PGS
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
# With size 1 a PG whose read lease (16 s) ran out, say under SIGSTOP, stays "laggy" for ever: nobody acks a
# new lease.  A lease longer than any test avoids it; "ceph osd down 0" repairs it.
osd pool default read lease ratio = 1000
mon allow pool size one = true
mon warn on pool no redundancy = false
[client]
# a client must not share one log / socket between processes
log file =
admin socket =
[mon]
mon data = $dir/mon
mon data avail warn = 1
mon data avail crit = 1
# single mon: nothing to batch for; the default 1 s makes every map change slow
paxos propose interval = 0.01
paxos min wait = 0.01
mon cluster log file = $dir/cluster.log
auth allow insecure global id reclaim = false
mon warn on insecure global id reclaim allowed = false
mon osd min down reporters = 1
mon initial members = a
[osd]
osd data = $dir/osd
osd objectstore = $STORE
memstore device bytes = $SIZE
memstore page set = true
bluestore block size = $(numfmt --from=iec "$SIZE")
bluestore block db create = false
bluestore block wal create = false
bluestore fsck on mkfs = false
bluestore fsck on mkfs deep = false
bluestore cache autotune = false
bluestore cache size = 64M
# Debian 13's OSD looks for them below its working directory.
osd class dir = $(echo /usr/lib/*/rados-classes)
osd class load list = rbd lock journal
osd class default list = rbd lock journal
osd op num shards = 2
osd op num threads per shard = 1
osd crush update on start = false
osd max object name len = 256
osd scrub during recovery = false
osd scrub begin hour = 0
osd scrub min interval = 1000000
osd scrub max interval = 1000000
osd deep scrub interval = 1000000
C
        # Keyrings written by hand (each ceph-authtool start costs ~40 ms).  Every key is in the
        # mon's initial keyring, so there are no "auth add" round trips later.
        local n k; declare -A caps=(
            [mon.]=$'\tcaps mon = "allow *"'
            [client.admin]=$'\tcaps mon = "allow *"\n\tcaps osd = "allow *"\n\tcaps mgr = "allow *"'
            [client.cleat]=$'\tcaps mon = "profile rbd"\n\tcaps osd = "profile rbd"'
            [osd.0]=$'\tcaps mon = "allow profile osd"\n\tcaps osd = "allow *"\n\tcaps mgr = "allow profile osd"')
        : >"$dir/mon.a.keyring"
        for n in mon. client.admin client.cleat osd.0; do
            # type 1 (AES), creation time 0, length 16, the secret
            k=$({ printf '\x01\0\0\0\0\0\0\0\0\0\x10\0'; head -c 16 /dev/urandom; } | base64)
            printf '[%s]\n\tkey = %s\n%s\n' "$n" "$k" "${caps[$n]}" >>"$dir/mon.a.keyring"
            printf '[%s]\n\tkey = %s\n' "$n" "$k" >"$dir/$n.keyring"
        done
        local fsid; fsid=$(sed -n 's/^fsid = //p' "$dir/ceph.conf")
        monmaptool --create --clobber --fsid "$fsid" --set-min-mon-release 16 --addv a "[v2:127.0.0.1:$port/0]" "$dir/monmap" >/dev/null
        # the first osd map already has osd.0 in a crush map: no "osd new" / "crush add" round trips
        osdmaptool -c "$dir/ceph.conf" --createsimple 1 --clobber "$dir/osdmap" >/dev/null 2>&1
        mkdir -p "$dir/mon" "$dir/osd"
        ceph-mon -c "$dir/ceph.conf" --mkfs -i a --monmap "$dir/monmap" --osdmap "$dir/osdmap" --keyring "$dir/mon.a.keyring"
        cp "$dir/mon.a.keyring" "$dir/mon/keyring"
        ceph-osd -c "$dir/ceph.conf" -i 0 --mkfs --osd-uuid "$(cat /proc/sys/kernel/random/uuid)" >"$dir/osd-mkfs.out" 2>&1 &
        local mkfs=$!
        pid_of mon.a >/dev/null || start mon.a ceph-mon -f -c "$dir/ceph.conf" -i a
        wait $mkfs || { cat "$dir/osd-mkfs.out" >&2; die "osd mkfs failed"; }
    fi
    STORE=$(cat "$dir/store")
    pid_of mon.a >/dev/null || start mon.a ceph-mon -f -c "$dir/ceph.conf" -i a
    if ! pid_of osd.0 >/dev/null; then
        ((fresh)) || [[ $STORE != memstore ]] || die "a memstore osd does not survive; down + up"
        # after a crash the mon still believes the old osd is up: clients would wait ~10 s for it
        ((fresh)) || timeout 120 ceph -c "$dir/ceph.conf" osd down 0 >/dev/null 2>&1 || true
        start osd.0 ceph-osd -f -c "$dir/ceph.conf" -i 0
    fi
    prove_write
    trap - TERM
    touch "$dir/ready"
    echo "export CEPH_CONF=$dir/ceph.conf CEPH_ARGS=\"-c $dir/ceph.conf\"" >"$dir/env"
    echo "$dir/ceph.conf"
}

watch_owner() { # holds neither the lock nor the caller's pipe
    [[ -n $OWNER_PID ]] || return 0
    setsid bash -c 'tail --pid="$1" -f /dev/null; exec "$2" down "$3"' watch "$OWNER_PID" \
        "$(realpath "$0")" "$dir" </dev/null >/dev/null 2>&1 9>&- &
    disown
}

# One client connection does everything that is left: wait for the osd, make the pool, prove a write. A daemon of this start that ends
# meanwhile is not waited for.
prove_write() {
    local ended=0
    echo "starting a client" >"$dir/stage"
    timeout 240 /usr/bin/python3 - "$dir/ceph.conf" "$POOL" "$PGS" "$dir/stage" <<'P' &
import sys, json, time, rados
conf, pool, pgs, stage = sys.argv[1:5]
def say(what):
    with open(stage, "w") as f: f.write(what)
say("connecting to the monitor")
c = rados.Rados(conffile=conf); c.connect(timeout=120)
def mon(**k):
    r, out, err = c.mon_command(json.dumps(k), b'')
    if r: raise SystemExit("mon command %s: %d %s" % (k, r, err))
    return out
say("waiting for the OSD to be up")
while json.loads(mon(prefix="osd stat", format="json")).get("num_up_osds", 0) < 1: time.sleep(0.02)
say("making the pool")
if not c.pool_exists(pool):
    mon(prefix="osd pool create", pool=pool, pg_num=int(pgs), pgp_num=int(pgs))
    mon(prefix="osd pool application enable", pool=pool, app="rbd", yes_i_really_mean_it=True)
io = c.open_ioctx(pool)
say("writing")
for i in range(16): io.write_full("mini_ceph.probe.%d" % i, b"x")   # every PG has peered and takes writes
for i in range(16): io.remove_object("mini_ceph.probe.%d" % i)
c.shutdown()
P
    client=$!
    wait -n -p ended || {
        local status=$?
        [[ $ended == "$client" ]] || die_with_logs "a daemon has ended with status $status while the client was $(cat "$dir/stage")"
        die_with_logs "cluster did not come up: status $status (124: nothing in 240 s) while it was $(cat "$dir/stage")"
    }
    [[ $ended == "$client" ]] || die_with_logs "a daemon has ended while the client was $(cat "$dir/stage")"
}

case $cmd in
up) up ;;
down|stop)
    [[ -d $dir ]] || exit 0
    dir=$(cd "$dir" && pwd)
    [[ -f $dir/ceph.conf && -f $dir/store ]] || die "not a mini_ceph directory: $dir"
    STORE_USED=$(cat "$dir/store")
    if [[ $cmd == stop ]]; then stop_all term; else stop_all kill; rm -rf -- "$dir"; fi ;;
pids)
    dir=$(cd "$dir" && pwd)
    for n in mon.a osd.0; do p=$(pid_of $n) && echo "$n $p $(awk '/VmRSS/{print $2}' /proc/$p/status) threads=$(ls /proc/$p/task|wc -l)"; done || true ;;
*) die "unknown command $cmd" ;;
esac
