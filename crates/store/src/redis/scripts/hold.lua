-- Holds the estimates of all parts of a request, or nothing. KEYS: the request's record, the open requests, then the
-- counter and the sorted set of each part. ARGV: `base`, the id, the most holds of a counter, the most requests, and for
-- each part the limit, the estimate (-1 reads), what an unknown cost charges, the time to live in milliseconds, the seconds
-- after which the counter expires (0 without a counter, whose key is then that of the set), the rule, whether it must fit
-- (0), may (1) or always holds (2), and the currency.
--
-- Returns the number of open requests, also expired ones that are not swept; then for each part what is spent, what is held, the millisecond at which its first
-- hold expires, 1 if it fits plus 2 if it holds plus 4 if there are too many, and of the holds that had expired the
-- number, and by how much their charges exceeded them.
local record, all, base, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local most, most_in_all = tonumber(ARGV[3]), tonumber(ARGV[4])
local parts, taken, longest, refused = {}, {}, 0, false

-- Charges a few expired holds of a counter. A member also says what an unknown cost charges, for a lost record.
local function sweep(part)
  part.expired, part.excess = 0, 0
  for _, member in ipairs(call('ZRANGEBYSCORE', part.set, '(0', whole(now), 'LIMIT', '0', '10')) do
    local request, index, held, cost = string.match(member, '^(.*):(%d+):(%d+):(%d+)$')
    held = tonumber(held)
    local expired = base .. 'hold:' .. request
    local text = call('HGET', expired, index)
    local hold = text and parsed(text)
    release(part.set, member, held)
    part.expired = part.expired + 1
    if hold and hold.charged < 0 then
      close(base, most_in_all, expired, index, hold, hold.at)
      part.excess = part.excess + max(hold.charged - held, 0)
    elseif not hold then
      charge(part.counter, tonumber(cost))
      part.excess = part.excess + max(tonumber(cost) - held, 0)
    end
  end
end

for i = 1, #ARGV - 4 do
  local part = { counter = KEYS[2 * i + 1], set = KEYS[2 * i + 2] }
  part.limit, part.estimate, part.unknown, part.ttl, part.expiry, part.rule, part.fit, part.currency =
    unpacked('<i8i8i8i8i8I8I1I2c0', ARGV[i + 4])
  if part.expiry == 0 then
    part.counter = ''
  end
  sweep(part)
  parts[i] = part
end
local open = call('ZCARD', all)
for _, part in ipairs(parts) do
  local known = taken[part.set] or { held = 0, holds = 0 }
  part.found = part.counter ~= '' and call('GET', part.counter)
  part.spent = tonumber(part.found or '0') or 0
  part.sum = -tonumber(call('ZSCORE', part.set, 'sum') or '0') + known.held
  part.holds = call('ZCARD', part.set)
  part.held = max(min(part.estimate, part.limit), 0)
  part.at = now + part.ttl
  local reads = part.estimate < 0
  local full = not reads and (part.holds + known.holds > most or open >= most_in_all)
  local fits = part.spent + part.sum + part.held <= part.limit and not full and (reads or part.limit > 0)
  part.is_held = not reads and (fits or part.fit == 2 and not full)
  part.code = (fits and 1 or 0) + (full and 4 or 0)
  refused = refused or not reads and part.fit == 0 and not fits
  if part.is_held then
    taken[part.set] = { held = known.held + part.held, holds = known.holds + 1 }
    longest = max(longest, part.ttl)
  end
end
if refused or longest > 0 and call('EXISTS', record) == 1 then
  longest = 0
end
local reply = { open }
for i, part in ipairs(parts) do
  local first = 0
  if longest > 0 and part.is_held then
    call('ZADD', part.set, whole(part.at), member_of(id, i, part))
    call('ZINCRBY', part.set, whole(-part.held), 'sum')
    part.charged = -1
    write(record, i, part)
    if part.counter ~= '' and not part.found then
      -- What is charged later is for this window.
      call('SET', part.counter, '0', 'EX', whole(part.expiry), 'NX')
    end
    if part.counter == '' then
      if call('PTTL', part.set) < part.ttl * 2 then
        call('PEXPIRE', part.set, whole(part.ttl * 2))
      end
    elseif part.holds == 0 then
      call('PEXPIRE', part.set, whole(part.expiry * 1000))
    end
    part.sum, part.code = part.sum + part.held, part.code + 2
  elseif part.code % 2 == 0 then
    first = tonumber(call('ZRANGEBYSCORE', part.set, '(0', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2] or '0')
  end
  for _, value in ipairs({ part.spent, part.sum, first, part.code, part.expired, part.excess }) do
    reply[#reply + 1] = value
  end
end
if longest > 0 then
  -- The sweepers have a minute to see what has expired.
  call('PEXPIRE', record, whole(longest * 2 + 60000))
  call('ZADD', all, whole(now + longest), id)
  if call('PTTL', all) < longest + 60000 then
    call('PEXPIRE', all, whole(longest * 2 + 60000))
  end
  reply[1] = open + 1
end
return reply
