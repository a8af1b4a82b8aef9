"""PushT: push a T-shaped block onto its target with a round pusher. Needs numpy, nothing else.

The task is the field's (Florence et al. 2021, "Implicit Behavioral Cloning"; Chi et al. 2023,
"Diffusion Policy"; gym-pusht). The physics is quasi-static: at some cm/s, friction with the table swallows
all momentum, so the block moves only while it is pushed. Lengths are metres, angles radians
(counter-clockwise), times seconds. The origin is the target, x points right, y *up*; in pictures row 0 is
at the *top*.
"""

import functools
import math
import operator
import struct
import zlib

import numpy as np

# The T in its own frame: two rectangles as (centre x, centre y, half width, half height). The origin is
# the bar's centre; the stem hangs down from it, so at yaw 0 the block looks like the letter.
BAR = (0.0, 0.0, 0.06, 0.015)
STEM = (0.0, -0.06, 0.015, 0.045)
TEE_AREA = 4 * (BAR[2] * BAR[3] + STEM[2] * STEM[3])
COM_Y = 4 * STEM[2] * STEM[3] * STEM[1] / TEE_AREA  # the centre of mass is (0, COM_Y), COM_Y = -0.0257

PUSHER_RADIUS = 0.015
WALL = 0.40  # neither pusher nor block reaches past x, y = +-WALL
TARGET_POSE = (0.0, 0.0, 0.0)  # x, y, yaw
CONTROL_DT = 0.1  # the time of one step()
SUBSTEPS = 10
MAX_SPEED = 1.0
MAX_STEPS = 300
POS_TOL = 0.03
ANG_TOL = 0.20
HOLD_STEPS = 5  # success: within both tolerances for so many control steps in a row
MU = 0.3  # Coulomb friction between pusher and block
SLOP = 1e-7  # the solver takes an overlap this small for touching

# The scene. Read at every draw: assign to any of these to try another one. Extent, chequer and tones are part
# of the experiment, and were chosen by measurement. Pixels enter the network as x / 127.5 - 1, so mid-grey is 0:
# the brighter the table, the louder its patches and the fainter the position tags beside them. And how the chequer's
# squares fall into the patches (1.91 a patch here) is a second cue to place, which needs no tags. Trained / random-init
# probe over 8 seeds (tests/evidence.py --scene): 160/220 at 0.42 0.83 / 0.69, but on 5 seeds the gap's own interval
# reaches 0; at 0.43 0.86 / 0.64, and on none; 180/230 at 0.43 0.84 / 0.57. So: as much as a random model can have while
# training still adds something on every seed, which held on 0..19 (tests/evidence.json).
HALF_EXTENT = 0.43  # the shorter side of a picture shows -HALF_EXTENT .. HALF_EXTENT
SQUARE = 0.05625  # side of the chequer's squares; one edge lies at x = y = -0.45
TONE_DARK, TONE_LIGHT = 160, 220
WALL_TONE, WALL_FROM = 153, 0.39
OUTSIDE_TONE, OUTSIDE_FROM = 0, 0.43
TARGET_RGB, TARGET_OPACITY = (89, 204, 102), 0.5
BLOCK_RGB = (115, 128, 242)
PUSHER_RGB = (230, 102, 89)

# For contact and drawing the stem reaches up through the bar: the same T, without a seam inside it.
_RECTS = (BAR, (0.0, -0.045, 0.015, 0.06))
_CORNERS = [(x, y) for cx, cy, hx, hy in (BAR, STEM) for x in (cx - hx, cx + hx) for y in (cy - hy, cy + hy)]
_REACH = max(math.sqrt(x * x + (y - COM_Y) ** 2) for x, y in _CORNERS)  # from the centre of mass: 0.081


def _mean_distance():
    """Mean distance of the T's points from its centre of mass: c = M_max / F_max of the limit surface
    under uniform pressure (Howe & Cutkosky 1996)."""

    def integral(x, y):  # of the distance from (0, 0), over the rectangle from there to (x, y)
        diagonal = 2 * x * y * math.sqrt(x * x + y * y)
        return (diagonal + x**3 * math.asinh(y / abs(x)) + y**3 * math.asinh(x / abs(y))) / 6

    total = 0.0
    for cx, cy, hx, hy in (BAR, STEM):
        x0, x1, y0, y1 = cx - hx, cx + hx, cy - hy - COM_Y, cy + hy - COM_Y
        total += integral(x1, y1) - integral(x0, y1) - integral(x1, y0) + integral(x0, y0)
    return round(total / TEE_AREA, 9)  # C libraries may differ in asinh's last bit


C2 = _mean_distance() ** 2


class PushTEnv:
    """Push a T onto its target on a square table with walls.

    Observation, float32 (10,)
        pusher x, y; block x, y; sin, cos of the block's yaw; target x, y; sin, cos of the target's yaw.
        Positions are in metres, within [-0.4, 0.4]. `obs[2:4]` is the block: the centre of its bar.
    Action, two numbers
        Velocity of the pusher, right and up, in m/s; each is clipped to [-1, 1] and held for 0.1 s.
    Reward
        -0.5 * (pos_err / 0.5 + ang_err / pi) at each step, and +1 at the step that brings success.
    Success
        pos_err < 0.03 m and ang_err < 0.20 rad in 5 control steps in a row.
    End of an episode
        Success, or 300 control steps.
    Start
        Block 0.10 to 0.24 m from the target, in quadrant `seed % 4` (0 NE, 1 NW, 2 SW, 3 SE), at any yaw;
        pusher within +-0.32 m, at least 0.13 m from the block.
    info
        success (bool), pos_err (m), ang_err (rad, 0 to pi), coverage: the area of block and target in
        common over the area of the target, 0 to 1, exact.

    The same seed and actions give the same observations, rewards and pictures, byte for byte.

    The block's friction with the table has an ellipsoid as its limit surface: pushed with force f and
    moment m about its centre of mass, it moves at v ~ f, omega ~ m / c^2 (Mason 1986; Goyal, Ruina &
    Papadopoulos 1991; Lynch, Maekawa & Tanie 1992). Walls are frictionless; between block and wall, the
    pusher yields.

    >>> env = PushTEnv()
    >>> obs = env.reset(seed=0)
    >>> obs.shape, obs.dtype.name, bool(obs[2] > 0 and obs[3] > 0)
    ((10,), 'float32', True)
    >>> obs, reward, done, info = env.step([0.5, 0.0])
    >>> done, sorted(info)
    (False, ['ang_err', 'coverage', 'pos_err', 'success'])
    >>> env.render_frame(64, 64).shape, env.masks(64, 64)["block"].shape
    ((64, 64, 3), (64, 64))
    """

    def __init__(self, substeps=SUBSTEPS):
        """substeps: physics steps in a control step, 10 to 1000. Fewer would let a fast pusher jump into
        the block."""
        self._substeps = whole_number("substeps", substeps, SUBSTEPS, 1000)
        self._steps = None  # None: no episode yet

    def reset(self, seed):
        """Start the episode of this seed, a whole number >= 0. Returns the first observation."""
        seed = whole_number("seed", seed, 0)
        rng = np.random.Generator(np.random.PCG64(seed))
        distance = rng.uniform(0.10, 0.24)
        # The quadrant goes round with the seed, so that any few episodes in a row are balanced.
        bearing = (seed % 4 + rng.uniform(0.0, 1.0)) * (math.pi / 2)
        x, y = distance * math.cos(bearing), distance * math.sin(bearing)
        yaw = rng.uniform(-math.pi, math.pi)
        while True:
            self._px, self._py = rng.uniform(-0.32, 0.32, size=2).tolist()
            if (self._px - x) ** 2 + (self._py - y) ** 2 >= 0.13**2:
                break
        self._place(x - COM_Y * math.sin(yaw), y + COM_Y * math.cos(yaw), yaw)
        self._steps, self._held, self._done = 0, 0, False
        return self._observe()

    def step(self, action):
        """Move the pusher with velocity `action` for 0.1 s. Returns obs, reward, done, info.

        RuntimeError before reset and after the end of the episode, ValueError for an action that is not
        two finite numbers; the state then stays as it was.
        """
        self._need_episode("step")
        if self._done:
            raise RuntimeError("step: the episode is over; call reset(seed) to start another")
        try:
            command = np.asarray(action)
        except ValueError:  # ragged
            command = np.empty(0)
        numbers = command.tolist() if command.shape == (2,) and command.dtype.kind in "fiu" else [math.nan]
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"action must be two finite numbers, a velocity in m/s, got {action!r}")
        dx, dy = (min(max(v, -MAX_SPEED), MAX_SPEED) * CONTROL_DT / self._substeps for v in numbers)
        for _ in range(self._substeps):
            self._substep(dx, dy)

        x, y, yaw = self.tee_pose
        pos_err = math.sqrt((x - TARGET_POSE[0]) ** 2 + (y - TARGET_POSE[1]) ** 2)
        ang_err = abs(wrap(yaw - TARGET_POSE[2]))
        self._held = self._held + 1 if pos_err < POS_TOL and ang_err < ANG_TOL else 0
        success = self._held >= HOLD_STEPS
        self._steps += 1
        self._done = success or self._steps >= MAX_STEPS
        reward = -0.5 * (pos_err / 0.5 + ang_err / math.pi) + success
        info = {"success": success, "pos_err": pos_err, "ang_err": ang_err, "coverage": coverage(x, y, yaw)}
        return self._observe(), reward, self._done, info

    @property
    def pusher_pos(self):
        """(x, y) of the pusher's centre in m."""
        self._need_episode("pusher_pos")
        return self._px, self._py

    @property
    def tee_pose(self):
        """(x, y, yaw) of the block: the centre of its bar in m; yaw in [-pi, pi)."""
        self._need_episode("tee_pose")
        return self._gx + COM_Y * self._sin, self._gy - COM_Y * self._cos, self._yaw

    @property
    def steps(self):
        """Control steps done in this episode."""
        self._need_episode("steps")
        return self._steps

    def _need_episode(self, what):
        if self._steps is None:
            raise RuntimeError(f"{what}: no episode yet; call reset(seed) first")

    def _observe(self):
        (x, y, _), (tx, ty, tyaw) = self.tee_pose, TARGET_POSE
        block_and_target = x, y, self._sin, self._cos, tx, ty, math.sin(tyaw), math.cos(tyaw)
        return np.array((self._px, self._py, *block_and_target), np.float32)

    # Physics, in plain floats: numpy on two numbers costs ten times more.

    def _place(self, gx, gy, yaw):
        """The state of the block: its centre of mass, its yaw, and the yaw's sine and cosine."""
        self._gx, self._gy, self._yaw = gx, gy, wrap(yaw)
        self._sin, self._cos = math.sin(yaw), math.cos(yaw)

    def _move_pusher(self, dx, dy):
        x, y, room = self._px + dx, self._py + dy, WALL - PUSHER_RADIUS
        self._px = -room if x < -room else room if x > room else x
        self._py = -room if y < -room else room if y > room else y

    def _substep(self, dx, dy):
        """Move the pusher by (dx, dy); what it runs into gives way."""
        before = self._px, self._py, self._gx, self._gy, self._yaw
        self._move_pusher(dx, dy)
        for _ in range(6):
            contact = self._contact()
            if contact is None:
                return
            self._push(*contact, dx, dy)
            if self._keep_block_inside():
                break
            dx = dy = 0.0  # the slip counts once; more rounds mend what the linear solution left over
        for _ in range(6):  # between pusher and wall, the pusher yields
            contact = self._contact()
            if contact is None:
                return
            depth, nx, ny, _, _ = contact
            self._move_pusher(-depth * nx, -depth * ny)
        self._px, self._py = before[:2]  # it has nowhere to yield to: jammed, nothing moves
        self._place(*before[2:])

    def _contact(self):
        """The overlap of pusher and block, None or: depth, unit normal nx, ny into the block, and the
        contact point rx, ry from the block's centre of mass."""
        wx, wy = self._px - self._gx, self._py - self._gy
        if wx * wx + wy * wy >= (_REACH + PUSHER_RADIUS) ** 2:
            return None
        s, c = self._sin, self._cos
        x, y = c * wx + s * wy, c * wy - s * wx + COM_Y  # the pusher's centre in the block's frame
        nearest, found = (PUSHER_RADIUS - SLOP) ** 2, None
        for rect in _RECTS:
            cx, cy, hx, hy = rect
            qx, qy = x - cx, y - cy
            kx = -hx if qx < -hx else hx if qx > hx else qx  # the rectangle's closest point
            ky = -hy if qy < -hy else hy if qy > hy else qy
            square = (kx - qx) * (kx - qx) + (ky - qy) * (ky - qy)
            if square < nearest:
                nearest, found = square, (kx + cx, ky + cy, rect)
        if found is None:
            return None
        kx, ky, (cx, cy, hx, hy) = found
        distance = math.sqrt(nearest)
        if distance > 0.0:
            ex, ey = (kx - x) / distance, (ky - y) / distance
        elif hx - abs(x - cx) < hy - abs(y - cy):  # the centre is inside: out through the nearest side
            distance, ex, ey = abs(x - cx) - hx, math.copysign(1.0, cx - x), 0.0
        else:
            distance, ex, ey = abs(y - cy) - hy, 0.0, math.copysign(1.0, cy - y)
        ky -= COM_Y
        return PUSHER_RADIUS - distance, c * ex - s * ey, s * ex + c * ey, c * kx - s * ky, s * kx + c * ky

    def _push(self, depth, nx, ny, rx, ry, dx, dy):
        """Move the block out of the pusher, which has just moved by (dx, dy).

        A force f at r moves the contact point by K f, K_ab = a.b + (r x a)(r x b) / c^2 for directions a
        and b. If it sticks, it moves by the depth along the normal n and with the pusher along the tangent
        t. Where that would take more friction than there is, it slides, with |f_t| = MU f_n.
        """
        tx, ty = -ny, nx
        along, slip = nx * dx + ny * dy, tx * dx + ty * dy
        if along > depth:
            slip *= depth / along  # the first part of the way was through air
        rn, rt = rx * ny - ry * nx, rx * ty - ry * tx
        knn, knt, ktt = 1.0 + rn * rn / C2, rn * rt / C2, 1.0 + rt * rt / C2
        det = knn * ktt - knt * knt
        fn, ft = (ktt * depth - knt * slip) / det, (knn * slip - knt * depth) / det
        if abs(ft) > MU * fn:
            mu = math.copysign(MU, ft)
            fn = depth / (knn + mu * knt)
            ft = mu * fn
        turn = (fn * rn + ft * rt) / C2
        self._place(self._gx + fn * nx + ft * tx, self._gy + fn * ny + ft * ty, self._yaw + turn)

    def _corners(self):
        """Where the corners of the block's two rectangles are."""
        (x, y, _), s, c = self.tee_pose, self._sin, self._cos
        return [(x + c * u - s * v, y + s * u + c * v) for u, v in _CORNERS]

    def _keep_block_inside(self):
        """A wall pushes back, without friction, at the mean of the corners that are in it, weighted by
        their depth. Returns whether one did."""
        if abs(self._gx) < WALL - _REACH and abs(self._gy) < WALL - _REACH:
            return False
        for k in range(3):
            corners = self._corners()
            walls = (0, -1.0), (0, 1.0), (1, -1.0), (1, 1.0)  # axis, side
            depth, axis, side = max((s * p[a] - WALL, a, s) for p in corners for a, s in walls)
            if depth <= 0.0:
                return k > 0
            depths = [max(side * p[axis] - WALL, 0.0) for p in corners]
            along = sum(d * p[1 - axis] for d, p in zip(depths, corners)) / sum(depths)
            rn = side * (along - self._gy) if axis == 0 else side * (self._gx - along)
            f = depth / (1.0 + rn * rn / C2)
            nx, ny = (-side, 0.0) if axis == 0 else (0.0, -side)
            self._place(self._gx + f * nx, self._gy + f * ny, self._yaw + f * rn / C2)
        xs, ys = zip(*self._corners())  # what little is left over goes without a turn
        self._gx -= max(max(xs) - WALL, 0.0) + min(min(xs) + WALL, 0.0)
        self._gy -= max(max(ys) - WALL, 0.0) + min(min(ys) + WALL, 0.0)
        return True

    # Pictures: flat shapes, their edges smoothed over one pixel by their signed distance.

    def render_frame(self, height, width):
        """The scene from above: uint8 (height, width, 3), RGB, row 0 at the top."""
        image = self._static("render_frame", height, width)[0].copy()
        for (box, distance), rgb in zip(self._distances(height, width), (BLOCK_RGB, PUSHER_RGB)):
            _paint(image[box], distance, rgb)
        return image

    def masks(self, height, width):
        """{"block", "pusher", "target"}: bool (height, width), True where the centre of the pixel lies on
        the object, whether or not another object hides it."""
        masks = {"target": self._static("masks", height, width)[1].copy()}
        for name, (box, distance) in zip(("block", "pusher"), self._distances(height, width)):
            masks[name] = np.zeros((height, width), bool)
            masks[name][box] = distance < 0.0
        return masks

    def _static(self, what, height, width):
        self._need_episode(what)
        height, width = whole_number("height", height, 1, 2048), whole_number("width", width, 1, 2048)
        scene = HALF_EXTENT, SQUARE, TONE_DARK, TONE_LIGHT, WALL_TONE, WALL_FROM, OUTSIDE_TONE, OUTSIDE_FROM
        return _draw_static(height, width, (*scene, TARGET_RGB, TARGET_OPACITY, TARGET_POSE))

    def _distances(self, height, width):
        """For the block, then the pusher: the box of pixels around it, and their distances, in pixels."""
        xs, ys = zip(*self._corners())
        box, x, y = _box(min(xs), max(xs), min(ys), max(ys), height, width)
        bx, by, _ = self.tee_pose
        pixel = 2 * HALF_EXTENT / min(height, width)
        yield box, tee_distance(x - bx, y - by, self._sin, self._cos) / pixel
        px, py, r = self._px, self._py, PUSHER_RADIUS
        box, x, y = _box(px - r, px + r, py - r, py + r, height, width)
        yield box, (np.sqrt((x - px) * (x - px) + (y - py) * (y - py)) - r) / pixel


def wrap(angle):
    """The same angle in [-pi, pi)."""
    if -math.pi <= angle < math.pi:
        return angle
    angle = math.fmod(angle, 2 * math.pi)
    return angle - 2 * math.pi if angle >= math.pi else angle + 2 * math.pi if angle < -math.pi else angle


def coverage(x, y, yaw):
    """Area of the T at this pose in common with the target, over the target's area: 0 to 1."""
    # Seen from the target, the target's rectangles are upright, and clipping by them compares numbers.
    tx, ty, tyaw = TARGET_POSE
    s, c = math.sin(tyaw), math.cos(tyaw)
    x, y, yaw = c * (x - tx) + s * (y - ty), c * (y - ty) - s * (x - tx), yaw - tyaw
    s, c = math.sin(yaw), math.cos(yaw)
    gx, gy = x - s * COM_Y, y + c * COM_Y - COM_Y  # from one centre of mass to the other
    if gx * gx + gy * gy >= 4 * _REACH * _REACH:
        return 0.0
    area = 0.0
    for cx, cy, hx, hy in (BAR, STEM):
        corners = (cx - hx, cy - hy), (cx + hx, cy - hy), (cx + hx, cy + hy), (cx - hx, cy + hy)
        quad = [(x + c * u - s * v, y + s * u + c * v) for u, v in corners]
        for tx, ty, kx, ky in (BAR, STEM):
            piece = _clip(quad, 0, 1, tx + kx)
            piece = piece and _clip(piece, 0, -1, kx - tx)
            piece = piece and _clip(piece, 1, 1, ty + ky)
            piece = piece and _clip(piece, 1, -1, ky - ty)
            for i, (u, v) in enumerate(piece):
                area += 0.5 * (piece[i - 1][0] * v - piece[i - 1][1] * u)
    return min(max(area / TEE_AREA, 0.0), 1.0)


def _clip(polygon, axis, side, bound):
    """The part of a convex polygon where side * p[axis] <= bound (Sutherland & Hodgman 1974)."""
    kept = []
    q = polygon[-1]
    e = side * q[axis] - bound
    for p in polygon:
        d = side * p[axis] - bound
        if d * e < 0.0:  # the edge q-p crosses the line
            w = e / (e - d)
            kept.append((q[0] + w * (p[0] - q[0]), q[1] + w * (p[1] - q[1])))
        if d <= 0.0:
            kept.append(p)
        q, e = p, d
    return kept


def tee_distance(x, y, s, c):
    """Distance (negative inside) of points, arrays x and y, from a T at the origin; s, c: sine and cosine
    of its yaw. Exact outside; inside, near the inner corners, a bit too small."""
    x, y = np.abs(c * x + s * y), c * y - s * x
    distances = []
    for _, cy, hx, hy in _RECTS:
        qx, qy = x - hx, np.abs(y - cy) - hy
        ox, oy = np.maximum(qx, 0.0), np.maximum(qy, 0.0)
        distances.append(np.sqrt(ox * ox + oy * oy) + np.minimum(np.maximum(qx, qy), 0.0))
    return np.minimum(*distances)


def _box(x0, x1, y0, y1, height, width):
    """The pixels that a thing within x0..x1, y0..y1 can tint: their slices of the picture, and their
    centres, a row of x and a column of y."""
    pixel = 2 * HALF_EXTENT / min(height, width)
    left, right = math.floor(x0 / pixel + width / 2 - 0.5), math.ceil(x1 / pixel + width / 2 + 0.5)
    top, bottom = math.floor(height / 2 - y1 / pixel - 0.5), math.ceil(height / 2 - y0 / pixel + 0.5)
    rows, cols = slice(max(top, 0), min(bottom, height)), slice(max(left, 0), min(right, width))
    x = (np.arange(cols.start, cols.stop) + (0.5 - width / 2)) * pixel
    y = ((height / 2 - 0.5) - np.arange(rows.start, rows.stop)[:, None]) * pixel
    return (rows, cols), x, y


def _paint(image, distance, rgb, opacity=1.0):
    """Lay a colour over the image, in place, where the distance (in pixels) says inside."""
    alpha = opacity * np.clip(0.5 - distance, 0.0, 1.0)[:, :, None]
    image[...] = np.rint(image + alpha * (np.array(rgb, np.float64) - image))


@functools.lru_cache(maxsize=4)
def _draw_static(height, width, scene):
    """What never moves, drawn once: the picture of it, and the target's mask. `scene` is there for the
    cache, which must notice when one of the constants changes."""
    pixel = 2 * HALF_EXTENT / min(height, width)
    _, x, y = _box(-1e3, 1e3, -1e3, 1e3, height, width)

    def stripes(u):
        """How much of a pixel lies on the odd stripes: 0 to 1."""
        phase = (u + 0.45) / SQUARE - 1.5  # 0 in the middle of an odd stripe, 1 in the middle of an even one
        off = np.abs(phase - 2 * np.floor(phase / 2 + 0.5))
        return np.clip(0.5 - (off - 0.5) * SQUARE / pixel, 0.0, 1.0)

    a, b = stripes(x), stripes(y)
    odd = a * (1.0 - b) + b * (1.0 - a)
    image = np.rint(TONE_LIGHT + odd * (TONE_DARK - TONE_LIGHT)).astype(np.uint8)[:, :, None].repeat(3, axis=2)
    out = np.maximum(np.abs(x), np.abs(y))
    _paint(image, (WALL_FROM - out) / pixel, (WALL_TONE,) * 3)
    _paint(image, (OUTSIDE_FROM - out) / pixel, (OUTSIDE_TONE,) * 3)
    tx, ty, tyaw = TARGET_POSE
    distance = tee_distance(x - tx, y - ty, math.sin(tyaw), math.cos(tyaw)) / pixel
    _paint(image, distance, TARGET_RGB, TARGET_OPACITY)
    return image, distance < 0.0


def whole_number(name, value, least, most=None):
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {allowed}, got {value!r}")
    return number


# Frames that were not drawn here, and pictures as files.


def load_frames(path, label):
    """Read frames of the task from an .npz file, whoever drew them. Returns (frames, labels, episode, masks), checked.

    In the file: frames uint8 (N, H, W, 3), H = W a multiple of 8 from 32 to 128; episode int (N,); either labels
    int (N,), 0 to 3, or tee_xy float (N, 2), the block's position from the target in metres, y up, from which
    label(x, y) makes them; and, if there, masks_block bool (N, H, W). ValueError with one line for whatever is not so.
    Returned: frames as they are, labels and episode int64 (N,), masks {"block": masks_block} or {}.
    """

    def need(ok, text):
        if not ok:
            raise ValueError(text)

    try:
        with np.load(path, allow_pickle=False) as file:
            data = {key: file[key] for key in file.files}
    except Exception as error:  # no file, no zip, cut short, a pickle, ...
        raise ValueError(f"cannot be read as an .npz file without pickles: {error}") from None
    need(
        {"frames", "episode"} <= set(data) and ("tee_xy" in data) != ("labels" in data),
        f"has the keys {sorted(data)}; needed are frames, episode and either tee_xy or labels",
    )
    n, hw = (*data["frames"].shape, 0, 0)[:2]
    integers, pictures = ["int64", "int32", "uint8"], (n, hw, hw)
    for key, kinds, shape in (
        ("frames", ["uint8"], (*pictures, 3)),
        ("episode", integers, (n,)),
        ("labels", integers, (n,)),
        ("tee_xy", ["float64", "float32"], (n, 2)),
        ("masks_block", ["bool"], pictures),
    ):
        if key in data:
            given = data[key]
            fits = given.dtype in kinds and given.shape == shape
            need(fits, f"{key} is {given.dtype} {given.shape}; allowed is {' or '.join(kinds)} {shape}")
    need(hw % 8 == 0 and 32 <= hw <= 128, f"frames are {hw} pixels wide; allowed are 32 to 128, multiples of 8")
    need(len(np.unique(data["episode"])) > 1, "holds fewer than two episodes; one must be held out")
    need(np.isfinite(data.get("tee_xy", 0.0)).all(), "tee_xy holds NaN or infinity; allowed are finite metres")
    labels = (data["labels"] if "labels" in data else label(*data["tee_xy"].T)).astype(np.int64)
    need(((labels >= 0) & (labels <= 3)).all(), f"labels are {np.unique(labels)}; allowed are 0 to 3")
    one = f"holds the single label {labels[0]}; two or more are needed, or there is nothing to tell apart"
    need(len(np.unique(labels)) > 1, one)
    masks = {"block": data["masks_block"]} if "masks_block" in data else {}
    return data["frames"], labels, data["episode"].astype(np.int64), masks


def outline(mask):
    """The outline of a mask bool (H, W): float (K, 2, 2), K pieces of one pixel's side, from (x, y) to (x, y)."""
    inside = np.pad(mask, 1)
    above = np.argwhere(inside[1:, 1:-1] != inside[:-1, 1:-1])[:, None, ::-1]
    left = np.argwhere(inside[1:-1, 1:] != inside[1:-1, :-1])[:, None, ::-1]
    return np.concatenate([above + [[0, 0], [1, 0]], left + [[0, 0], [0, 1]]]).astype(float)


def png(rgb):
    """The bytes of a PNG file (RFC 2083) of a picture uint8 (H, W, 3)."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", rgb.shape[1], rgb.shape[0], 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)  # 0: the row is stored as it is
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")
