"""The same pushes in three worlds: ours (quasi-static), gym-pusht's (pymunk) and a MuJoCo model of the scene.

    python tests/compare_physics.py                 # the tables, about five minutes
    python tests/compare_physics.py --strokes 40    # a quick look

A stroke places a resting T and a pusher that touches it, then moves the pusher along a straight line at 1 cm/s; the
result is how far the block's centre of mass moved (m) and how far it turned (rad). Deterministic.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

import gym_pusht.envs.pusht as gym_pusht
import mujoco
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import pusht_env  # noqa: E402
from pusht_env import BAR, COM_Y, CONTROL_DT, PUSHER_RADIUS, STEM, PushTEnv, wrap  # noqa: E402

SPEED = 0.01  # m/s: stopped by table friction 0.1, a block at this speed slides on for 0.05 mm
HOME = 0.15, -0.15  # where the block lies: off the target, so that no stroke ends an episode of ours, and far from the walls
# The T's eight faces: their two ends and the way into the block. Next to an inner corner the pusher's radius is left out.
R = PUSHER_RADIUS
FACES = [
    ((-0.06, 0.015), (0.06, 0.015), (0, -1)), ((-0.015, -0.105), (0.015, -0.105), (0, 1)),
    ((-0.06, -0.015), (-0.06, 0.015), (1, 0)), ((0.06, -0.015), (0.06, 0.015), (-1, 0)),
    ((-0.06, -0.015), (-0.015 - R, -0.015), (0, 1)), ((0.015 + R, -0.015), (0.06, -0.015), (0, 1)),
    ((-0.015, -0.105), (-0.015, -0.015 - R), (1, 0)), ((0.015, -0.105), (0.015, -0.015 - R), (-1, 0)),
]  # fmt: skip


class Stroke(NamedTuple):
    """yaw: the block's, rad. start: the pusher from the block's bar centre, m; way: its unit direction; both in the world's axes.
    length, m. Rightward x, upward y."""

    yaw: float
    start: tuple
    way: tuple
    length: float

    @property
    def ticks(self):
        """Control steps of 0.1 s that the stroke takes, at SPEED or a little less."""
        return math.ceil(self.length / (SPEED * CONTROL_DT))

    @property
    def velocity(self):
        return tuple(self.length / (self.ticks * CONTROL_DT) * w for w in self.way)


def strokes(count, seed=0):
    """Random strokes: any yaw, a random face (by length) and point on it, within 45 degrees of its normal, 2 to 10 cm."""
    rng = np.random.default_rng(seed)
    lengths = np.array([math.dist(a, b) for a, b, _ in FACES])
    drawn = []
    for _ in range(count):
        a, b, n = map(np.array, FACES[rng.choice(len(FACES), p=lengths / lengths.sum())])
        point, lean, yaw = a + rng.uniform() * (b - a), rng.uniform(-math.pi / 4, math.pi / 4), rng.uniform(-math.pi, math.pi)
        start = turned(*(point - PUSHER_RADIUS * n), yaw)
        drawn.append(Stroke(yaw, start, turned(*n, yaw + lean), rng.uniform(0.02, 0.10)))
    return drawn


def turned(x, y, yaw):
    s, c = math.sin(yaw), math.cos(yaw)
    return c * x - s * y, s * x + c * y


def moved(before, after):
    """dx, dy (m) of the centre of mass and the turn (rad), from two poses x, y, yaw of the bar's centre."""
    (x0, y0), (x1, y1) = (np.array(p[:2]) + turned(0.0, COM_Y, p[2]) for p in (before, after))
    return x1 - x0, y1 - y0, wrap(after[2] - before[2])


def in_ours(stroke):
    env = PushTEnv()
    env.reset(0)
    com = turned(0.0, COM_Y, stroke.yaw)
    env._place(HOME[0] + com[0], HOME[1] + com[1], stroke.yaw)
    env._px, env._py = HOME[0] + stroke.start[0], HOME[1] + stroke.start[1]
    before = env.tee_pose
    for _ in range(stroke.ticks):
        env.step(stroke.velocity)
    return moved(before, env.tee_pose)


# gym-pusht: 1 px is 1 mm, y points down, the T's origin is the middle of the bar's outer edge. Its mirror image, in a mirrored world.


def in_pymunk(stroke):
    env = gym_pusht.PushTEnv(obs_type="state")
    env._setup()
    block, agent, dt = env.block, env.agent, env.dt

    def pose():
        x, y = block.local_to_world((0, 1000 * BAR[3]))
        return x / 1000, -y / 1000, -block.angle

    block.angle = -stroke.yaw
    edge = turned(0.0, BAR[3], stroke.yaw)
    block.position = 256 + 1000 * edge[0], 256 - 1000 * edge[1]
    agent.position = 256 + 1000 * stroke.start[0], 256 - 1000 * stroke.start[1]
    env.space.reindex_shapes_for_body(block)
    env.space.reindex_shapes_for_body(agent)
    before = pose()
    agent.velocity = 1000 * stroke.velocity[0], -1000 * stroke.velocity[1]  # kinematic: it goes its way, whatever it meets
    for _ in range(stroke.ticks * round(CONTROL_DT / dt)):
        env.space.step(dt)
    return moved(before, pose())


HEIGHT = 0.01  # of MuJoCo's T, which the pusher meets at half height
TABLE_MU = 0.1  # quasi-static motion does not depend on it, but for the load that a push at some height shifts forward


def mujoco_model(support, mu):
    """The T, a sphere of the pusher's radius and a plane. support: "corners", MuJoCo's own contacts of box and plane, or "feet",
    one small foot in the middle of every 15 x 15 mm of the T: uniform pressure. mu: friction of pusher and block."""
    feet, boxes = "", ""
    for cx, cy, hx, hy in (BAR, STEM):
        boxes += f'<geom class="tee" type="box" pos="{cx} {cy} 0" size="{hx} {hy} {HEIGHT / 2}" density="500"/>'
        for x in np.arange(cx - hx + 0.0075, cx + hx, 0.015):
            for y in np.arange(cy - hy + 0.0075, cy + hy, 0.015):
                feet += f'<geom class="foot" pos="{x:.4f} {y:.4f} {0.001 - HEIGHT / 2}"/>'
    return mujoco.MjModel.from_xml_string(f"""
<mujoco>
  <option timestep="0.004" cone="elliptic" impratio="10" integrator="implicitfast"/>
  <default>
    <default class="tee"><geom contype="{3 if support == "corners" else 1}" conaffinity="0"/></default>
    <default class="foot"><geom type="sphere" size="0.001" mass="0" contype="2" conaffinity="0"/></default>
  </default>
  <worldbody>
    <geom name="table" type="plane" size="1 1 1" contype="0" conaffinity="2" priority="1" friction="{TABLE_MU} 0 0"
          solref="0.05 1" solimp="0.5 0.5 0.001 0.5 2"/>
    <body name="tee" pos="0 0 {HEIGHT / 2}"><freejoint/>{boxes}{feet if support == "feet" else ""}</body>
    <body name="pusher" pos="0.5 0 {HEIGHT / 2}">
      <joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/>
      <geom type="sphere" size="{PUSHER_RADIUS}" mass="100" contype="0" conaffinity="1" priority="1" friction="{mu} 0 0" solref="0.02 1"/>
    </body>
  </worldbody>
</mujoco>""")


class Mujoco:
    """A function of a stroke, like `in_ours`. After a call, `c` is the mean distance of the load from the centre of mass, m, over
    the stroke."""

    def __init__(self, support, mu=pusht_env.MU):
        self.model = mujoco_model(support, mu)
        self.data = mujoco.MjData(self.model)
        for _ in range(500):  # comes to rest
            mujoco.mj_step(self.model, self.data)
        self.rest = self.data.qpos.copy()

    def pose(self):
        x, y, _, w, _, _, z = self.data.qpos[:7]
        return x, y, 2 * math.atan2(z, w)

    def load(self):
        """The table's normal force on the block, and its first moment: force times distance from the centre of mass."""
        force, total, moment = np.zeros(6), 0.0, 0.0
        for i, contact in enumerate(self.data.contact):
            if 0 in contact.geom:
                mujoco.mj_contactForce(self.model, self.data, i, force)
                total += force[0]
                moment += force[0] * math.dist(contact.pos[:2], self.data.xipos[1][:2])
        return total, moment

    def __call__(self, stroke):
        model, data, v = self.model, self.data, np.array(stroke.velocity)
        mujoco.mj_resetData(model, data)
        data.qpos[:] = self.rest
        data.qpos[:2] = 0.0
        data.qpos[3:7] = math.cos(stroke.yaw / 2), 0.0, 0.0, math.sin(stroke.yaw / 2)
        origin = model.body_pos[2][:2]
        before, loads = self.pose(), []
        for k in range(stroke.ticks * round(CONTROL_DT / model.opt.timestep)):
            data.qpos[7:] = np.array(stroke.start) + k * model.opt.timestep * v - origin  # it goes its way, whatever it meets
            data.qvel[6:] = v
            mujoco.mj_step(model, data)
            if k % 25 == 12:
                loads.append(self.load())
        total, moment = np.sum(loads, axis=0)
        self.c = moment / total
        return moved(before, self.pose())


def outcomes(world, drawn):
    """float64 (strokes, 3): dx, dy (m) of the centre of mass and the turn (rad) after each stroke."""
    return np.array([world(stroke) for stroke in drawn])


def difference(a, b):
    """Of two worlds' outcomes, for each stroke: the distance between the two displacements, mm, and between the turns, degrees."""
    return 1000 * np.hypot(*(a - b).T[:2]), np.degrees(np.abs(a - b)[:, 2])


def ours_with(mu, c, drawn):
    """`outcomes` of our world with another friction of the pusher and another c (m)."""
    kept = pusht_env.MU, pusht_env.C2
    pusht_env.MU, pusht_env.C2 = mu, c * c
    try:
        return outcomes(in_ours, drawn)
    finally:
        pusht_env.MU, pusht_env.C2 = kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strokes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    drawn = strokes(args.strokes, args.seed)
    length, way = np.array([s.length for s in drawn]), np.array([s.way for s in drawn])
    runs = {"ours": outcomes(in_ours, drawn), "pymunk": outcomes(in_pymunk, drawn)}
    loads = {}
    for support in ("corners", "feet"):
        world, loads[support] = Mujoco(support), []
        results = []
        for stroke in drawn:
            results.append(world(stroke))
            loads[support].append(1000 * world.c)
        runs[f"MuJoCo, {support}"] = np.array(results)

    env = gym_pusht.PushTEnv(obs_type="state")
    env._setup()
    block = env.block
    print(f"{args.strokes} strokes, seed {args.seed}, {1000 * SPEED:.0f} mm/s. Constants, mm:\n")
    print("| world | c: turn per moment, or mean distance of the load | friction pusher-block | centre of mass below the bar's centre |")
    print("|---|---|---|---|")
    print(f"| ours | {1000 * math.sqrt(pusht_env.C2):.1f} | {pusht_env.MU} | {-1000 * COM_Y:.1f} |")
    friction = {s.friction * a.friction for s in block.shapes for a in env.agent.shapes}
    gyration, cog = math.sqrt(block.moment / block.mass), block.center_of_gravity[1] - 1000 * BAR[3]
    print(f"| pymunk | {gyration:.1f} | {', '.join(map(str, friction))} | {cog:.1f} |")
    for support, c in loads.items():
        print(f"| MuJoCo, {support} | {np.mean(c):.1f} | {pusht_env.MU} (chosen here) | {-1000 * COM_Y:.1f} |")

    print("\nDifferences, median (90th percentile); signed: median of the first less the second\n")
    print("| worlds | mm | % of the stroke | degrees | signed, mm along the stroke | signed, degrees of turn (size) | turn the same way |")
    print("|---|---|---|---|---|---|---|")
    names = list(runs)
    for i, first in enumerate(names):
        for second in names[i + 1:]:
            a, b = runs[first], runs[second]
            mm, degrees = difference(a, b)
            columns = (f"{np.median(v):.1f} ({np.percentile(v, 90):.1f})" for v in (mm, mm / length / 10, degrees))
            ahead = 1000 * np.median(((a - b)[:, :2] * way).sum(1))
            more = np.degrees(np.median(np.abs(a[:, 2]) - np.abs(b[:, 2])))
            turns = np.minimum(np.abs(a[:, 2]), np.abs(b[:, 2])) > math.radians(3)
            same = ((a * b)[:, 2] > 0)[turns].sum()
            print(f"| {first} - {second} | {' | '.join(columns)} | {ahead:+.1f} | {more:+.1f} | {same} of {turns.sum()} |", flush=True)

    print("\nOurs with other constants: median difference, mm / degrees\n")
    print("| mu | c, mm | " + " | ".join(names[1:]) + " |\n|---|---|" + "---|" * len(names[1:]))
    for mu in (0.0, 0.15, 0.3, 0.5, 1.0):
        for c in (0.030, math.sqrt(pusht_env.C2), 0.048, gyration / 1000, 0.0625):
            there = ours_with(mu, c, drawn)
            cells = (" / ".join(f"{np.median(v):.1f}" for v in difference(there, runs[name])) for name in names[1:])
            print(f"| {mu} | {1000 * c:.1f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
