-- Counts every check, unless one of them would be over its limit: then only those that would be. Refunds are always
-- counted. A check is a key, and hits, a limit, an expiry in seconds, and its membership: 0 alone, 3 alone with a key
-- that may expire earlier, 1 the first of a group and 2 the next; a group is counted only if none of its checks is over.
-- Returns each counter afterwards, and its result: 0 counted, 1 read, 2 rejected.
local reply, over, any_over = {}, {}, false
-- Above 2^62, which is over every limit, a double may exceed the integers of Redis.
local MOST = 4611686018427387904

local function read(key)
  local text = redis.call('GET', key)
  if text and not string.find(text, '^-?%d+$') then
    return nil
  end
  return tonumber(text or '0'), not text
end

local function is_over(i, count)
  return math.max(count + tonumber(ARGV[4 * i - 3]), 0) > tonumber(ARGV[4 * i - 2])
end

local function add(i, count, is_new)
  local key, seconds = KEYS[i], ARGV[4 * i - 1]
  local hits = math.max(tonumber(ARGV[4 * i - 3]), -count)
  if hits == 0 then
    return count
  elseif is_new then
    redis.call('SET', key, string.format('%.0f', hits), 'EX', seconds)
    return hits
  end
  -- A counter that would overflow returns an error and is not changed.
  local after = redis.pcall('INCRBY', key, string.format('%.0f', hits))
  count = type(after) == 'number' and after or count
  if ARGV[4 * i] == '3' and redis.call('TTL', key) < tonumber(seconds) then
    redis.call('EXPIRE', key, seconds)
  end
  return count
end

for i, key in ipairs(KEYS) do
  local count = read(key)
  if not count then
    return { err = 'ERR value is not an integer or out of range' }
  end
  over[i] = is_over(i, count)
  any_over = any_over or over[i]
end
local first = 1
while first <= #KEYS do
  local last, is_group, is_rejected = first, ARGV[4 * first] == '1', any_over
  while ARGV[4 * (last + 1)] == '2' do
    last = last + 1
  end
  for i = first, last do
    -- A key may occur twice: its count is read again.
    is_rejected = is_rejected or is_group and is_over(i, (read(KEYS[i])))
  end
  for i = first, last do
    local count, is_new = read(KEYS[i])
    if is_rejected and tonumber(ARGV[4 * i - 3]) >= 0 and (is_group or not over[i]) then
      reply[2 * i - 1], reply[2 * i] = math.min(count, MOST), is_group and is_over(i, count) and 2 or 1
    else
      reply[2 * i - 1], reply[2 * i] = math.min(add(i, count, is_new), MOST), 0
    end
  end
  first = last + 1
end
return reply
