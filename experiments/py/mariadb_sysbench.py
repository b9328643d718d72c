"""A MariaDB server of its own under sysbench, from start to end: arguments KEPT CLIENTS TRANSACTIONS.

The server listens on a socket in a folder that is removed at the end. Its data are made once in the folder KEPT
(some seconds), and copied for each run, so that a run that was killed spoils nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

KEPT, CLIENTS, TRANSACTIONS = sys.argv[1:4]
SERVER = next(filter(os.path.exists, ("/usr/sbin/mariadbd", "/usr/libexec/mariadbd")), "mariadbd")
TABLES = ["--db-driver=mysql", "--mysql-user=root", "--tables=1", "--table-size=10000"]


class Server:
    """A server on the data in `folder`."""

    def __init__(self, folder):
        self.socket = os.path.join(folder, "socket")
        self.process = subprocess.Popen(
            [
                SERVER,
                "--no-defaults",
                f"--datadir={folder}/data",
                f"--socket={self.socket}",
                f"--pid-file={folder}/pid",
                "--skip-networking",
                "--skip-grant-tables",
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=8M",
                "--user=root",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not os.path.exists(self.socket):
            if self.process.poll() is not None:
                sys.exit(f"mariadb_sysbench: {SERVER} ended with {self.process.returncode}")
            time.sleep(0.01)

    def sysbench(self, *words):
        target = [f"--mysql-socket={self.socket}", *TABLES]
        subprocess.run(["sysbench", "oltp_read_only", *target, *words], check=True, stdout=subprocess.DEVNULL)

    def end(self):
        self.process.terminate()
        self.process.wait()


def prepared():
    """The folder with the data, which is made where it is missing."""
    ready = os.path.join(KEPT, "mariadb")
    if os.path.exists(ready):
        return ready
    os.makedirs(KEPT, exist_ok=True)
    making = tempfile.mkdtemp(dir=KEPT)
    install = ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--user=root"]
    subprocess.run([*install, f"--datadir={making}/data"], check=True, stdout=subprocess.DEVNULL)
    os.mkdir(os.path.join(making, "data", "sbtest"))
    server = Server(making)
    server.sysbench("prepare")
    server.end()
    try:
        os.rename(making, ready)
    except OSError:
        # Somebody else was faster.
        shutil.rmtree(making)
    return ready


with tempfile.TemporaryDirectory() as folder:
    shutil.copytree(os.path.join(prepared(), "data"), os.path.join(folder, "data"))
    server = Server(folder)
    server.sysbench(f"--threads={CLIENTS}", f"--events={TRANSACTIONS}", "--time=0", "run")
    server.end()
